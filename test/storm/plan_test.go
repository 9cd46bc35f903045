package storm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/migration"
)

// what goes wrong.
type what string

const (
	stepKills     what = "agent killed by a step"
	stepFails     what = "step fails"
	stepPanics    what = "step panics"
	killsAgent    what = "agent killed"
	killsBoth     what = "both agents killed"
	stopsAgent    what = "agent stopped"
	linkDown      what = "link down"
	cancels       what = "cancel"
	resolves      what = "resolve without --force"
	secondAgent   what = "second agent"
	engineCommand what = "engine command on a copy that has left"
)

// byStep is what the agent does itself when it comes to a step.
var byStep = map[what]agent.FaultKind{
	stepKills: agent.FaultKill, stepFails: agent.FaultFail, stepPanics: agent.FaultPanic,
}

// fault is what goes wrong in a round, and when: at a point of one of its migrations, or some time after
// their begin.
type fault struct {
	what  what
	move  int         // which of the round's migrations it is about
	point agent.Fault // empty: after the delay
	delay time.Duration
	side  migration.Side // whose agent, or which node is asked
	lasts time.Duration  // of a broken link
	again time.Duration  // it happens once more so long after it; 0: not
	pick  int            // of what there is to choose from
}

func (f fault) String() string {
	at := fmt.Sprintf("after %v", f.delay)
	if f.point.Step != "" {
		at = strings.Join([]string{f.point.When, f.point.Side, f.point.Step}, " ")
	}
	return fmt.Sprintf("%s (%s) %s of migration %d, lasts %v, again %v", f.what, f.side, at, f.move, f.lasts, f.again)
}

// move is a migration of a round.
type move struct {
	container int // of those of the storm
	way       int // how many nodes further
	mode      migration.Mode
}

// round is some migrations at the same time and what goes wrong meanwhile.
type round struct {
	moves   []move
	faults  []fault
	revival time.Duration // after which an agent that has ended is started again
}

// movesAtOnce bounds the migrations of a round.
const movesAtOnce = 3

// climate is what the faults of a storm are drawn from.
type climate struct {
	kinds  []what // the frequent ones more than once
	faults int    // in a round, at most
	again  bool   // some happen once more while the nodes recover
	undos  bool   // steps fail whose undo fails, too
}

// rough is the climate of a storm that is asked for.
func rough() climate {
	return climate{faults: 3, again: true, undos: true, kinds: []what{
		stepKills, stepKills, stepFails, stepFails, stepPanics, killsAgent, killsAgent, killsBoth, stopsAgent,
		linkDown, linkDown, cancels, resolves, secondAgent, engineCommand,
	}}
}

// mild is the climate of the short form: one fault in a round.
func mild() climate {
	return climate{faults: 1, kinds: []what{stepKills, stepFails, stepPanics, killsAgent, linkDown, cancels, secondAgent}}
}

// planRound makes a round: the same for the same seed, number, climate, containers and nodes.
func planRound(seed uint64, number, nodes int, in climate, modes [][]migration.Mode) round {
	from := rand.New(rand.NewPCG(seed, uint64(number)))
	r := round{revival: time.Duration(from.IntN(1500)) * time.Millisecond}
	containers := from.Perm(len(modes))
	for _, c := range containers[:1+from.IntN(min(movesAtOnce, len(modes)))] {
		mode := modes[c][from.IntN(len(modes[c]))]
		r.moves = append(r.moves, move{container: c, way: 1 + from.IntN(nodes-1), mode: mode})
	}
	if from.IntN(4) == 0 { // a fair day
		return r
	}
	for range 1 + from.IntN(in.faults) {
		r.faults = append(r.faults, planFault(from, in, r.moves)...)
	}
	return r
}

// planFault makes a fault, or two where the first would not happen without the second.
func planFault(from *rand.Rand, in climate, moves []move) []fault {
	f := fault{
		what: in.kinds[from.IntN(len(in.kinds))], move: from.IntN(len(moves)), side: migration.Source,
		delay: time.Duration(from.IntN(2500)) * time.Millisecond,
		lasts: time.Duration(100+from.IntN(8000)) * time.Millisecond, pick: from.IntN(1 << 16),
	}
	if from.IntN(2) == 0 {
		f.side = migration.Target
	}
	if in.again && from.IntN(3) == 0 {
		f.again = time.Duration(100+from.IntN(3000)) * time.Millisecond
	}
	steps := migration.Steps(moves[f.move].mode)
	switch step := steps[from.IntN(len(steps))]; {
	case f.what == engineCommand: // only then nobody needs the copy any more
		f.point = agent.Fault{Side: "source", Step: string(migration.StepDestroy), When: "before"}
		f.again = 0
	case byStep[f.what] != "" && step.Undo != "" && in.undos && from.IntN(4) == 0:
		undo := fault{what: f.what, move: f.move, point: agent.Fault{Side: string(step.At), Step: string(step.Undo), When: "before"}}
		return []fault{undo, {what: stepFails, move: f.move, point: agent.Fault{Side: "source", Step: failing(moves[f.move].mode), When: "after"}}}
	case byStep[f.what] != "" || from.IntN(2) == 0:
		f.point = agent.Fault{Side: string(step.At), Step: string(step.Name), When: []string{"before", "after"}[from.IntN(2)]}
	}
	return []fault{f}
}

// failing is a step after whose failure all others before it are undone.
func failing(mode migration.Mode) string {
	if mode == migration.Restart {
		return string(migration.StepStop)
	}
	return string(migration.StepDump)
}

// TestPlan makes the same plan twice, another one of another seed, and all kinds of faults.
func TestPlan(t *testing.T) {
	modes := [][]migration.Mode{anyMode, anyMode, {migration.Cold}}
	plan := func(seed uint64) (all []round) {
		for number := range 200 {
			all = append(all, planRound(seed, number, 3, rough(), modes))
		}
		return all
	}
	first := plan(1)
	if again := plan(1); fmt.Sprint(first) != fmt.Sprint(again) {
		t.Error("one seed makes two plans")
	}
	if other := plan(2); fmt.Sprint(first) == fmt.Sprint(other) {
		t.Error("two seeds make one plan")
	}
	seen := map[what]bool{}
	for _, r := range first {
		for _, f := range r.faults {
			seen[f.what] = true
			if f.move >= len(r.moves) {
				t.Errorf("%v is about none of %d migrations", f, len(r.moves))
			}
		}
	}
	for _, kind := range rough().kinds {
		if !seen[kind] {
			t.Errorf("nothing of kind %q in 200 rounds", kind)
		}
	}
}
