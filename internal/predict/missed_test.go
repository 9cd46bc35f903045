package predict

import (
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// TestWaitOver: pages that a program writes again and again within an answer count, although a long round
// sees them once.
func TestWaitOver(t *testing.T) {
	const left, rtt, rate = 8 * time.Second, time.Millisecond, 12.5e6
	f := Forecast{Input: Input{Container: Container{PrivateBytes: 1 << 30}}}
	unknown := f.WaitOver(left, rtt, rate)
	f.Input.Container.Curve = Curve{{0.1, 100e6}}
	if known := f.WaitOver(left, rtt, rate); unknown > 2*time.Second || known < 7*time.Second {
		t.Errorf("%s, and %s if 100 MB are written within 0.1 s", unknown, known)
	}
}

// TestMissed: a migration that took much longer than expected reports that, and what differed from the
// forecast.
func TestMissed(t *testing.T) {
	at := func(seconds float64) Interval {
		return Interval{Low: seconds / 2, Expected: seconds, High: 2 * seconds}
	}
	f := Forecast{
		Prediction: Prediction{Mode: migration.PreCopy, Downtime: at(0.1), Total: at(2),
			FrozenBytes: at(1e6)},
		Input: Input{
			Container: Container{PrivateBytes: 1 << 30, Curve: Curve{{0.1, 1e6}, {1, 5e6}}},
			Link:      Link{BandwidthBitsPerSecond: 1e9, RTTSeconds: 0.001},
		},
	}
	report := func(change func(*migration.Report)) migration.Report {
		r := migration.Report{
			Mode: migration.PreCopy, DowntimeSeconds: 0.12, TotalSeconds: 2.1,
			DirtyingRateBytesPerSecond: 5e6,
			Link:                       migration.LinkSeen{BandwidthBitsPerSecond: 1e9, RTTSeconds: 0.001},
			Rounds:                     []migration.Round{{Seconds: 1}},
		}
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		change func(*migration.Report)
		want   []string // empty: nothing is reported
	}{
		"as expected":  {func(*migration.Report) {}, nil},
		"sooner":       {func(r *migration.Report) { r.DowntimeSeconds, r.TotalSeconds = 0.001, 0.1 }, nil},
		"another mode": {func(r *migration.Report) { r.Mode, r.DowntimeSeconds = migration.Hybrid, 9 }, nil},
		"a slower link": {func(r *migration.Report) {
			r.TotalSeconds, r.Link.BandwidthBitsPerSecond = 20, 1e8
		}, []string{"the migration took 20s", "2s (1s to 4s) was expected",
			"the link carried 100 Mbit/s, not 1 Gbit/s"}},
		"a longer round trip": {func(r *migration.Report) {
			r.DowntimeSeconds, r.Link.RTTSeconds = 1, 0.2
		}, []string{"the freeze took 1s", "a round trip took 200ms, not 1ms"}},
		"more is written": {func(r *migration.Report) {
			r.DowntimeSeconds, r.DirtyingRateBytesPerSecond = 1, 90e6
		}, []string{"wrote 90 MB of pages per second, not 5 MB"}},
		"more in the freeze": {func(r *migration.Report) {
			r.DowntimeSeconds, r.Bytes.FilesFinal = 1, 80e6
		}, []string{"80 MB left in the freeze, not 1 MB"}},
		"slower machines": {func(r *migration.Report) { r.DowntimeSeconds = 1 },
			[]string{"the machines were slower"}},
	} {
		said := f.Missed(report(c.change))
		if len(c.want) == 0 && said != "" {
			t.Errorf("%s: %q", name, said)
		}
		for _, want := range c.want {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %q does not say %q", name, said, want)
			}
		}
	}
}
