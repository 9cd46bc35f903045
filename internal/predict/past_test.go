package predict

import (
	"math"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

func moved(mode migration.Mode) migration.Report {
	return migration.Report{
		Mode: mode, Result: migration.Moved, DowntimeSeconds: 0.05,
		Link: migration.LinkSeen{RTTSeconds: 0.02},
		Phases: []migration.Phase{
			{Name: "examine", Seconds: 0.1}, {Name: "wait", Seconds: 0.01}, {Name: "rounds", Seconds: 3.5},
			{Name: "prepare", Seconds: 0.2},
			{Name: "freeze", Seconds: 0.01, Downtime: true}, {Name: "restore", Seconds: 0.04, Downtime: true},
			{Name: "drain", Seconds: 7}, {Name: "destroy", Seconds: 0.03},
		},
		Rounds: []migration.Round{
			{RawBytes: 40e6, SentBytes: 30e6, Seconds: 3.02}, {RawBytes: 5e6, SentBytes: 4e6, Seconds: 0.4},
			{RawBytes: 1e5, SentBytes: 1e5, Final: true},
		},
		Bytes: migration.Bytes{MemoryFinal: 1e5},
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9+1e-6*math.Abs(want) {
		t.Errorf("%s: %g, want %g", what, got, want)
	}
}

func TestPartsOf(t *testing.T) {
	p := PartsOf(moved(migration.PreCopy), 10e6)
	near(t, "begin", p.Begin, 0.11)
	near(t, "ahead", p.Ahead, 0.28)
	near(t, "freeze", p.Freeze, 0.04)
	near(t, "end", p.End, 0.03)
	report := moved(migration.PreCopy)
	report.Bytes.MemoryFinal, report.Layers = 1e6, &migration.Layers{}
	if p := PartsOf(report, 10e6); p.Freeze != 0 || p.Begin != 0 {
		t.Errorf("a freeze that was memory, and a beginning with layers: %+v, want nothing", p)
	}
}

// TestTransferred: the throughput is the link's bandwidth, or a pace if the link carries more.
func TestTransferred(t *testing.T) {
	report := moved(migration.PreCopy)
	round, push := Transferred(report)
	near(t, "bandwidth", round.BitsPerSecond(), 80e6/carried)
	if push != (Transfer{}) {
		t.Errorf("there was a post-copy push: %+v", push)
	}
	near(t, "pace over a link that was the limit", round.Pace(80e6/carried), 0)
	near(t, "pace", round.Pace(1e9), 3.0/40e6)
	report.Link.LimitBitsPerSecond = 80e6
	if _, rounds, pushed := PaceOf(report, 1e9); rounds || pushed {
		t.Error("one that was held back has a pace")
	}
	report.Rounds[0].SentBytes = 1000
	if round, _ := Transferred(report); round != (Transfer{}) {
		t.Errorf("a kilobyte is said to tell something: %+v", round)
	}
}

func TestCurveOf(t *testing.T) {
	curve := CurveOf(moved(migration.PreCopy))
	if len(curve) != 1 || curve[0] != (Point{3.02, 5e6}) {
		t.Errorf("curve of the rounds: %v", curve)
	}
	report := moved(migration.PreCopy)
	report.Rounds[1].WrittenBytes = 7e6
	if curve := CurveOf(report); len(curve) != 1 || curve[0] != (Point{3.02, 7e6}) {
		t.Errorf("curve of rounds of which the first took some of it along: %v", curve)
	}
	watched := Curve{{0.1, 1e6}, {1, 2e6}}
	near(t, "with the rounds", watched.With(curve).Within(3.02, 1e9), 5e6)
	near(t, "with less than was watched", watched.With(Curve{{0.5, 9e6}}).Within(1, 1e9), 2e6)
}

func TestContentOf(t *testing.T) {
	report := moved(migration.PreCopy)
	near(t, "of the first round", ContentOf(report), 0.75)
	near(t, "of what follows", ContentOf(moved(migration.PostCopy)), 0)
	report.Mode, report.Bytes.MemoryRaw = migration.Cold, 4e5
	near(t, "of a freeze", ContentOf(report), 0.25)
	near(t, "of what was looked at", Container{Ratio: 0.5, SampledPages: 10}.Holding(0.1).Ratio, 0.5)
	near(t, "of what was not", Container{}.Holding(0.1).Ratio, 0.1)
}

func TestRestartOf(t *testing.T) {
	report := migration.Report{Mode: migration.Restart, DowntimeSeconds: 4.1, Phases: []migration.Phase{
		{Name: "stop", Seconds: 0.1}, {Name: "stop", Seconds: 3, Downtime: true},
		{Name: "transfer", Seconds: 0.1, Downtime: true},
		{Name: "start", Seconds: 1, Downtime: true},
	}}
	stop, start := RestartOf(report)
	near(t, "stop", stop, 3)
	near(t, "start", start, 1)
	near(t, "freeze", PartsOf(report, 1e6).Freeze, 0)
}

func TestMiddle(t *testing.T) {
	at := func(begin, rtt float64) Seen { return Seen{Parts: Parts{Begin: begin}, RTTSeconds: rtt} }
	got := Middle([]Seen{at(9, 0.02), at(1, 0.05), at(8, 0.05), at(0, 0.05), at(2, 0.05)})
	near(t, "begin", got.Begin, 2)
	freezes := []Seen{{Parts: Parts{Freeze: 0.04}}, {Parts: Parts{Freeze: 0.3}}, {Parts: Parts{Freeze: 0.05}}}
	if s := Middle(freezes); s.Freeze != 0.05 || s.ShortestFreeze != 0.04 || s.LongestFreeze != 0.3 {
		t.Errorf("of freezes: %+v", s)
	}
	if got.Times != 4 {
		t.Errorf("%d times over this link, want 4", got.Times)
	}
}

// TestPast: the duration of a migration is expected of the next one, and a slow moment counts only within
// bounds.
func TestPast(t *testing.T) {
	in := simulated(groups{}, 16000, 100e6, 0.02, 1, 10, 1).in
	before := Of(in, migration.PreCopy)
	seen := Seen{Parts: Parts{Begin: 0.5, Ahead: 0.6, Freeze: 0.08, End: 0.2}, RTTSeconds: 0.02, Times: 100,
		Same: true}
	in.Past = Past{migration.PreCopy: seen}
	after := Of(in, migration.PreCopy)
	if d := after.Downtime.Expected; math.Abs(d-0.08) > 0.003 {
		t.Errorf("downtime %.3f, was 0.08 the last times", d)
	}
	if hybrid := Of(in, migration.Hybrid).Downtime.Expected; math.Abs(hybrid-0.08) > 0.003 {
		t.Errorf("downtime of a hybrid %.3f, and 0.08 of a pre-copy the last times", hybrid)
	}
	seen.Freeze, seen.Same = 20, false
	in.Past[migration.PreCopy] = seen
	if d := Of(in, migration.PreCopy).Downtime.Expected; d > 6*before.Downtime.Expected {
		t.Errorf("downtime %.3f because another took 20 s", d)
	}
	seen.RTTSeconds, seen.Begin = 0.0001, 0.2
	in.Past[migration.PreCopy] = seen
	if h := Of(in, migration.PreCopy).Handoff.Expected; h < before.Handoff.Expected/2 {
		t.Errorf("handoff %.3f, expected were %.3f, because it was short over another link",
			h, before.Handoff.Expected)
	}
	in.Past, in.Pace = nil, Pace{Rounds: 1e-6}
	if total := Of(in, migration.PreCopy).Total.Expected; total < 60 {
		t.Errorf("total %.1f s of 65 MB at a microsecond for a byte", total)
	}
}

func TestSaturating(t *testing.T) {
	const w, k = 16e6, 1.25
	at := func(t float64) Point { return Point{t, w * -math.Expm1(-k*t)} }
	near(t, "writes at random to 16 MB", saturating(at(0.1), at(1), 7)/at(7).Bytes, 1)
	near(t, "always new pages", saturating(Point{0.1, 1e6}, Point{1, 10e6}, 7), 70e6)
	near(t, "the same pages", saturating(Point{0.1, 1e6}, Point{1, 1e6}, 7), 1e6)
}
