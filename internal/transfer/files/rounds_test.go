package files

import (
	"testing"
	"time"

	"github.com/godwit/godwit/internal/files/copies"
)

// Rounds of files end when they are more each time, and go on where the same files are written again.
func TestOutrun(t *testing.T) {
	round := func(megabytes int64, seconds float64) copies.Stats {
		return copies.Stats{SentBytes: megabytes * 1e6,
			Duration: time.Duration(seconds * float64(time.Second))}
	}
	for name, c := range map[string]struct {
		history []copies.Stats
		want    bool
	}{
		"the first says nothing": {[]copies.Stats{round(400, 32)}, false},
		"it only grows":          {[]copies.Stats{round(400, 32), round(1600, 128)}, true},
		"a broker": {[]copies.Stats{round(385, 160), round(6, 3), round(26, 11),
			round(16, 7), round(26, 11)}, false},
		"little, and all of it":   {[]copies.Stats{round(1, 0.1), round(1, 0.1)}, false},
		"as much as there was":    {[]copies.Stats{round(400, 32), round(40, 4), round(390, 31)}, true},
		"much less than there is": {[]copies.Stats{round(400, 32), round(200, 16)}, false},
	} {
		if got := outrun(c.history); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
