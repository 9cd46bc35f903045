package results

import (
	"testing"
)

// TestSeconds: a figure that is rounded up to the next unit is shown in that unit.
func TestSeconds(t *testing.T) {
	for s, want := range map[float64]string{0: "0", 0.000246: "246 us", 0.0009994: "999 us",
		0.0009996: "1.0 ms",
		0.0322:    "32.2 ms", 2.5: "2.50 s"} {
		if got := Seconds(s); got != want {
			t.Errorf("%g s is shown as %s, want %s", s, got, want)
		}
	}
}
