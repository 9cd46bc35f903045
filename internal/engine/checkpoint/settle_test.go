package checkpoint

import (
	"testing"
	"time"
)

// TestSettleLimit checks that peers which take what was left to the kernel prolong the wait, up to a limit.
func TestSettleLimit(t *testing.T) {
	began := time.Now()
	for name, test := range map[string]struct {
		undelivered func(after time.Duration) int
		want        time.Duration
	}{
		"nothing is undelivered":  {func(time.Duration) int { return 0 }, settlePatience},
		"the peer takes nothing":  {func(time.Duration) int { return 1000 }, settlePatience},
		"more and more is closed": {func(after time.Duration) int { return int(after) }, settlePatience},
		"the peer stops": {func(after time.Duration) int {
			return 9000 - int(min(after, time.Second)/time.Millisecond)
		}, time.Second + settlePatience},
		"the peer is slow": {func(after time.Duration) int { return 90_000 - int(after/time.Millisecond) },
			deliverPatience},
	} {
		limit := newSettleLimit(began)
		const step = 100 * time.Millisecond
		after := time.Duration(0)
		for after < time.Minute && !limit.reached(began.Add(after), test.undelivered(after)) {
			after += step
		}
		if after != test.want {
			t.Errorf("%s: gives up after %s, want %s", name, after, test.want)
		}
	}
}
