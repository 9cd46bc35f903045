package stream

import (
	"testing"
	"time"
)

func TestWantsMore(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		rtt           time.Duration
		busy, limited time.Duration
		want          bool
	}{
		"the window is the limit":    {100 * time.Millisecond, second, second / 2, true},
		"the link is":                {100 * time.Millisecond, second, second / 10, false},
		"nothing was sent":           {100 * time.Millisecond, 0, 0, false},
		"a short link":               {400 * time.Microsecond, second, second, false},
		"the receiver is slow, near": {time.Millisecond, second, second, false},
	} {
		before := Transport{RTT: c.rtt, Busy: 3 * second, Limited: 2 * second}
		now := Transport{RTT: c.rtt, Busy: before.Busy + c.busy, Limited: before.Limited + c.limited}
		if WantsMore(before, now) != c.want {
			t.Errorf("%s: want %t", name, c.want)
		}
	}
}
