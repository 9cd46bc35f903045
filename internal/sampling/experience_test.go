package sampling

import (
	"fmt"
	"math"
	"testing"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

func TestExperience(t *testing.T) {
	e := noExperience()
	report := migration.Report{Mode: migration.PreCopy, Link: migration.LinkSeen{RTTSeconds: 0.02}}
	e.learn("b", "web", report, predict.Parts{Begin: 0.3, Freeze: 0.05}, 1e8)
	var in predict.Input
	if e.Of("b", "web", &in); in.Past[migration.PreCopy].Freeze != 0.05 || !in.Past[migration.PreCopy].Same {
		t.Errorf("of the container: %+v", in.Past)
	}
	if e.Of("b", "db", &in); in.Past[migration.PreCopy].Freeze != 0 ||
		in.Past[migration.PreCopy].Begin != 0.3 {
		t.Errorf("of another container: %+v, want all but its freeze", in.Past)
	}
	if e.Of("c", "web", &in); len(in.Past) != 0 {
		t.Errorf("of a way that nothing has gone: %+v", in.Past)
	}
	for i := range 2 * mostLessons {
		e.learn("b", fmt.Sprint(i), report, predict.Parts{}, 1e8)
	}
	if len(e.all) > mostLessons {
		t.Errorf("%d are kept", len(e.all))
	}
}

// TestPaceOfOthers: a container of which only the beginning is known moves at the pace of others, and a
// known container at its own pace.
func TestPaceOfOthers(t *testing.T) {
	e := noExperience()
	slow := migration.Report{Mode: migration.PreCopy,
		Rounds: []migration.Round{{RawBytes: 100e6, SentBytes: 100e6, Seconds: 10}}}
	e.learn("b", "large", slow, predict.Parts{}, 1e9)
	e.learn("b", "tiny", migration.Report{Mode: migration.Cold}, predict.Parts{}, 1e9)
	var in predict.Input
	if e.Of("b", "tiny", &in); in.Pace.Rounds != 1e-7 {
		t.Errorf("of one that was too small to tell: %+v", in.Pace)
	}
	e.learn("b", "quick", migration.Report{Mode: migration.PreCopy,
		Rounds: []migration.Round{{RawBytes: 100e6, SentBytes: 100e6, Seconds: 0.8}}}, predict.Parts{}, 1e9)
	if e.Of("b", "quick", &in); in.Pace.Rounds != 0 {
		t.Errorf("of one that only the link held up: %+v", in.Pace)
	}
}

// noExperience returns the experience of a node without measurements.
func noExperience() *Experience {
	return NewExperience(NewMachine(1),
		func(string) (predict.Measured, bool) { return predict.Measured{}, false })
}

// TestWhatTeaches: only a migration that has moved its container, and for which the source has reported the
// downtime, teaches anything. Each side learns of the other node, over the link in the source's direction.
func TestWhatTeaches(t *testing.T) {
	freeze := []migration.Phase{{Name: string(migration.StepFreeze), Downtime: true, Seconds: 0.5}}
	moved := migration.Report{
		Mode: migration.PreCopy, Result: migration.Moved, Source: "a", Target: "b", Phases: freeze,
		Rounds: []migration.Round{{RawBytes: 100e6, SentBytes: 100e6, Seconds: 10}},
	}
	undone, unseen := moved, moved
	undone.Result, unseen.Phases = migration.RolledBack, nil
	link := func(string) predict.Link {
		return predict.Link{BandwidthBitsPerSecond: 80e6,
			BackBitsPerSecond: 1e9}
	}
	for _, one := range []struct {
		what   string
		report migration.Report
		side   migration.Side
		of     string  // the node that has a lesson afterwards
		rounds float64 // seconds per byte beyond the link's
	}{
		{"at the source, held up by the link", moved, migration.Source, "b", 0},
		{"at the target, whose link there is faster", moved, migration.Target, "a", 1e-7},
		{"undone", undone, migration.Source, "", 0},
		{"without the source's part", unseen, migration.Target, "", 0},
	} {
		e := noExperience()
		e.Learn(one.report, one.side, "web", link)
		for _, node := range []string{"a", "b"} {
			var in predict.Input
			e.Of(node, "web", &in)
			if known := len(in.Past) > 0; known != (node == one.of) {
				t.Errorf("%s: known of %s: %t", one.what, node, known)
			} else if known && in.Pace.Rounds != one.rounds {
				t.Errorf("%s: %g seconds for a byte", one.what, in.Pace.Rounds)
			}
		}
	}
}

// TestSlowFreezesAreLearned: a node whose freezes take longer than its containers explain is slow, and one
// migration alone does not change that much.
func TestSlowFreezesAreLearned(t *testing.T) {
	m := NewMachine(1 << 20) // so that the load of this machine does not count
	measured := predict.Measured{Container: predict.Container{Processes: 1, Threads: 1}}
	e := NewExperience(m, func(string) (predict.Measured, bool) { return measured, true })
	work := predict.Work(measured.Container)
	for _, one := range []struct {
		mode   migration.Mode
		freeze float64
		want   float64
	}{
		{migration.Cold, 2 * work, 1}, // all memory is sent in its freeze
		{migration.PreCopy, 0, 1},     // not known
		{migration.PreCopy, 2 * work, 2},
		{migration.PreCopy, 1000 * work, 2 * math.Pow(mostSlowness/2, newestCounts)},
	} {
		e.learnWork(migration.Report{Mode: one.mode}, "web", predict.Parts{Freeze: one.freeze}, 1e9)
		if got := m.past.slowness(); math.Abs(got-one.want) > 1e-9 {
			t.Errorf("after a freeze of %g s in mode %s: %g, want %g", one.freeze, one.mode, got, one.want)
		}
	}
	if p := m.Predicted(); p.Cores != 1<<20 || p.PageBytesPerSecond <= 0 || p.Slowness < 2 {
		t.Errorf("predicted: %+v", p)
	}
}
