package agent

import (
	"fmt"
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
	if e.Of("b", "db", &in); in.Past[migration.PreCopy].Freeze != 0 || in.Past[migration.PreCopy].Begin != 0.3 {
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

// TestPaceOfOthers: a container of which only the beginning is known moves at the pace of others,
// and one of which it is known at its own.
func TestPaceOfOthers(t *testing.T) {
	e := noExperience()
	slow := migration.Report{Mode: migration.PreCopy, Rounds: []migration.Round{{RawBytes: 100e6, SentBytes: 100e6, Seconds: 10}}}
	e.learn("b", "large", slow, predict.Parts{}, 1e9)
	e.learn("b", "tiny", migration.Report{Mode: migration.Cold}, predict.Parts{}, 1e9)
	var in predict.Input
	if e.Of("b", "tiny", &in); in.Pace.Rounds != 1e-7 {
		t.Errorf("of one that was too small to tell: %+v", in.Pace)
	}
	e.learn("b", "quick", migration.Report{Mode: migration.PreCopy, Rounds: []migration.Round{{RawBytes: 100e6, SentBytes: 100e6, Seconds: 0.8}}}, predict.Parts{}, 1e9)
	if e.Of("b", "quick", &in); in.Pace.Rounds != 0 {
		t.Errorf("of one that only the link held up: %+v", in.Pace)
	}
}

// noExperience is that of a node on which nothing was measured.
func noExperience() *Experience {
	return NewExperience(NewMachine(1), func(string) (predict.Measured, bool) { return predict.Measured{}, false })
}
