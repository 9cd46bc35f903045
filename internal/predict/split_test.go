package predict

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// TestSplitIsBounded describes the choice for a container that writes a fifth of its memory each second,
// faster than the link carries it. Clients wait least by far in post-copy, which needs both nodes for half
// a minute.
func TestSplitIsBounded(t *testing.T) {
	const pages = 16000
	for _, one := range []struct {
		name     string
		use      migration.PostCopyUse
		settings migration.Settings
		want     migration.Mode
		why      string // of a mode that is not chosen
	}{
		{"by default", migration.PostCopyAuto, migration.Settings{}, migration.Cold, "longer than 10s"},
		{"a minute is allowed", migration.PostCopyAuto, migration.Settings{MaxSplit: time.Minute},
			migration.PostCopy, ""},
		{"a second is allowed", migration.PostCopyAuto, migration.Settings{MaxSplit: time.Second},
			migration.Cold, "--max-split"},
		{"the node leaves it to users", migration.PostCopyOnRequest, migration.Settings{}, migration.Cold,
			"on-request"},
		{"a user asks for it there", migration.PostCopyOnRequest, migration.Settings{MaxSplit: time.Minute},
			migration.PostCopy, ""},
		{"the node never does", migration.PostCopyNever, migration.Settings{MaxSplit: time.Minute},
			migration.Cold, "never"},
	} {
		in := simulated(programs(pages)["uniform"], pages, 20e6, 0.05, 1, 10, 1).in
		_, in.Demands.Split = migration.SplitLimits(one.use, one.settings)
		all := All(in)
		choice, err := Choose(all, in.Demands)
		if err != nil || choice.Mode != one.want {
			t.Errorf("%s: chosen: %s (%v), want %s; %q", one.name, choice.Mode, err, one.want, choice.Why)
		}
		told := slices.ContainsFunc(choice.Why, func(why string) bool {
			return strings.HasPrefix(why, "not post-copy: ") && strings.Contains(why, one.why)
		})
		if told != (one.why != "") {
			t.Errorf("%s: the reasons are %q, want post-copy ruled out: %q", one.name, choice.Why, one.why)
		}
		for _, p := range all {
			if (p.Mode == migration.PostCopy || p.Mode == migration.Hybrid) && p.Split.Expected < 10 {
				t.Errorf("%s: mode %s needs both nodes for %g s: nothing to bound", one.name, p.Mode,
					p.Split.Expected)
			}
		}
	}
}

// TestSplitOfConvergingHybrid: rounds that converge leave nothing to follow, so only a node that never
// allows it refuses.
func TestSplitOfConvergingHybrid(t *testing.T) {
	in := simulated(groups{}, 16000, 100e6, 0.02, 1, 10, 1).in
	for use, want := range map[migration.PostCopyUse]bool{migration.PostCopyAuto: true,
		migration.PostCopyOnRequest: true, migration.PostCopyNever: false} {
		in.Demands.Split, _ = migration.SplitLimits(use, migration.Settings{MaxSplit: time.Millisecond})
		if p := Of(in, migration.Hybrid); p.Possible != want {
			t.Errorf("%s: possible is %v: %q; %+v", use, p.Possible, p.Why, p.Split)
		}
	}
}

// TestPreCopyThatMayNotTurn: a pre-copy that would need both nodes for too long sends the rest in the freeze.
func TestPreCopyThatMayNotTurn(t *testing.T) {
	in := simulated(programs(16000)["all"], 16000, 20e6, 0.05, 1, 10, 1).in
	in.Demands.Settings.OnNoConvergence, in.Demands.Settings.MaxSplit = migration.TurnHybrid, time.Second
	free := Of(in, migration.PreCopy)
	in.Demands.Split, _ = migration.SplitLimits(migration.PostCopyAuto, in.Demands.Settings)
	bound := Of(in, migration.PreCopy)
	if free.Split.Expected == 0 || !bound.Possible || bound.Split.Expected != 0 ||
		bound.Downtime.Expected <= free.Downtime.Expected {
		t.Errorf("without a bound %+v, with one %+v", free, bound)
	}
}

// TestRefusedModesAreNotChosen: the best mode that no policy refuses is chosen, and the choice names the
// refused modes.
func TestRefusedModesAreNotChosen(t *testing.T) {
	in := simulated(groups{}, 16000, 100e6, 0.02, 1, 10, 1).in
	first, err := Choose(All(in), in.Demands)
	if err != nil {
		t.Fatal(err)
	}
	const why = "the policy of node b does not allow this mode"
	in.Demands.Refused = map[migration.Mode]string{}
	for refused := first.Mode; ; {
		in.Demands.Refused[refused] = why
		choice, err := Choose(All(in), in.Demands)
		if err != nil { // no mode is left
			if len(in.Demands.Refused) != 4 || !strings.Contains(err.Error(), why) {
				t.Errorf("with %v refused: %v", in.Demands.Refused, err)
			}
			return
		}
		told := slices.Contains(choice.Why, "not "+string(refused)+": "+why)
		if in.Demands.Refused[choice.Mode] != "" || !told {
			t.Errorf("with %v refused mode %s is chosen, for %q", in.Demands.Refused, choice.Mode, choice.Why)
			return
		}
		refused = choice.Mode
	}
}
