package agent

import (
	"testing"
	"time"

	"github.com/godwit/godwit/internal/files"
)

// Rounds of files end when they are more each time, and go on where the same files are written again.
func TestOutrun(t *testing.T) {
	round := func(megabytes int64, seconds float64) files.RoundStats {
		return files.RoundStats{SentBytes: megabytes * 1e6,
			Duration: time.Duration(seconds * float64(time.Second))}
	}
	for name, c := range map[string]struct {
		history []files.RoundStats
		want    bool
	}{
		"the first says nothing": {[]files.RoundStats{round(400, 32)}, false},
		"it only grows":          {[]files.RoundStats{round(400, 32), round(1600, 128)}, true},
		"a broker": {[]files.RoundStats{round(385, 160), round(6, 3), round(26, 11),
			round(16, 7), round(26, 11)}, false},
		"little, and all of it":   {[]files.RoundStats{round(1, 0.1), round(1, 0.1)}, false},
		"as much as there was":    {[]files.RoundStats{round(400, 32), round(40, 4), round(390, 31)}, true},
		"much less than there is": {[]files.RoundStats{round(400, 32), round(200, 16)}, false},
	} {
		if got := outrun(c.history); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
