package rounds

import (
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// TestRestless wants two rounds to tell only if the first was all the memory and the second nearly
// that again.
func TestRestless(t *testing.T) {
	all := memory.RoundStats{Pages: 1000, SentBytes: 4e6, Duration: 10 * time.Second}
	again := memory.RoundStats{Pages: 950, SentBytes: 4e6, Duration: 10 * time.Second,
		Interval: 10 * time.Second}
	shorter, less := again, again
	shorter.Duration = 5 * time.Second
	less.Pages = 800 // that did not compress as well
	for what, c := range map[string]struct {
		m     Rounds
		ahead int
		want  bool
	}{
		"one round":                    {Rounds{history: []memory.RoundStats{all}}, 0, false},
		"all again":                    {Rounds{history: []memory.RoundStats{all, again}}, 0, true},
		"fewer pages of as many bytes": {Rounds{history: []memory.RoundStats{all, less}}, 0, false},
		"in a shorter time":            {Rounds{history: []memory.RoundStats{all, shorter}}, 0, false},
		"the target had some": {Rounds{config: Config{Partly: true},
			history: []memory.RoundStats{all, again}},
			0, false},
		"ahead": {Rounds{history: []memory.RoundStats{all, again, again}}, 1, false},
		"three": {Rounds{config: Config{Partly: true},
			history: []memory.RoundStats{all, shorter, less}}, 0, true},
		"three after one ahead": {Rounds{history: []memory.RoundStats{all, again, shorter, less}},
			1, true},
	} {
		if got := c.m.restless(c.ahead); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}
