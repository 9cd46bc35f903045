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

// what is a kind of fault.
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
	losesJournal  what = "agent killed, its journal lost"
	thawsCopy     what = "frozen copy thawed"
	killsKeeper   what = "keeper of a frozen copy killed"
	killsOverlay  what = "encrypting process killed"
	killsDaemon   what = "containerd killed"
)

// hitsFrozen reports whether a fault concerns the copy at the source that is frozen, or was left there. It
// happens to a migration that waits for it, which may differ from the planned one.
func (w what) hitsFrozen() bool {
	return w == engineCommand || w == losesJournal || w == thawsCopy || w == killsKeeper
}

// byStep maps faults to the agent's own faults at a step.
var byStep = map[what]agent.FaultKind{
	stepKills: agent.FaultKill, stepFails: agent.FaultFail, stepPanics: agent.FaultPanic,
}

// fault is a fault in a round, and its time: at a point of one of its migrations, or some time after the
// migration's beginning.
type fault struct {
	what  what
	trip  int         // index among the round's containers
	move  int         // index among its migrations
	point agent.Fault // empty: after the delay
	delay time.Duration
	side  migration.Side // whose agent, or which node is asked
	lasts time.Duration  // of a broken link, or of an operator's patience
	again time.Duration  // it happens once more after this time; 0: not
	pick  int            // selects among alternatives
}

func (f fault) String() string {
	at := fmt.Sprintf("after %v", f.delay)
	if f.point.Step != "" {
		at = strings.Join([]string{f.point.When, f.point.Side, f.point.Step}, " ")
	}
	return fmt.Sprintf("%s (%s) %s, lasts %v, again %v", f.what, f.side, at, f.lasts, f.again)
}

// trip is a container's work in a round: migrations one after the other.
type trip struct {
	container int // index among the storm's
	moves     []move
}

// move is a migration.
type move struct {
	way    int // how many nodes further
	mode   migration.Mode
	spill  bool    // remote pages go to the source's disk, too
	faults []fault // of the round's faults
}

// round is some containers that move at the same time and the faults meanwhile.
type round struct {
	trips   []trip
	faults  []fault
	revival time.Duration // after this time, an ended agent is restarted
	begins  time.Duration // no migrations begin after this time
}

// climate is the distribution of a storm's rounds.
type climate struct {
	kinds  []what // of faults; frequent ones occur more than once
	faults int    // in a round, maximum
	fair   int    // how many of 12 rounds have no faults
	least  int    // minimum of containers that move at the same time
	most   int
	moves  int // maximum of each, one after the other
}

// The climates of a configured storm: a short one is rough all the time. A long one also has fair days,
// with many migrations.
func rough() climate {
	return climate{faults: 3, fair: 3, least: 1, most: 3, moves: 1, kinds: []what{
		stepKills, stepKills, stepFails, stepFails, stepPanics, killsAgent, killsAgent, killsBoth, stopsAgent,
		linkDown, linkDown, cancels, resolves, secondAgent, engineCommand, engineCommand, losesJournal,
		thawsCopy, thawsCopy, killsKeeper, killsOverlay,
	}}
}

// rougher is the climate of a storm with all engines.
func rougher() climate {
	c := rough()
	c.kinds = append(c.kinds, killsDaemon)
	return c
}

func changing() climate {
	c := rougher()
	c.fair, c.faults, c.least, c.most, c.moves = 4, 19, 6, 12, 20
	return c
}

// How long migrations begin in a round without faults, and in one with faults.
const (
	fairTime = 20 * time.Second
	foulTime = 8 * time.Second
)

// planRound makes a round: the same for the same seed, number, climate, containers and nodes.
func planRound(seed uint64, number, nodes int, in climate, modes [][]migration.Mode) round {
	from := rand.New(rand.NewPCG(seed, uint64(number)))
	r := round{revival: time.Duration(from.IntN(1500)) * time.Millisecond}
	fair := from.IntN(12) < in.fair
	together := min(in.least+from.IntN(in.most-in.least+1), len(modes))
	for _, c := range from.Perm(len(modes))[:together] {
		t := trip{container: c}
		for range in.moves {
			mode := modes[c][from.IntN(len(modes[c]))]
			t.moves = append(t.moves, move{way: 1 + from.IntN(nodes-1), mode: mode, spill: from.IntN(4) == 0})
		}
		r.trips = append(r.trips, t)
	}
	if r.begins = fairTime; fair {
		return r
	}
	r.begins = foulTime
	for range 1 + from.IntN(in.faults) {
		r.faults = append(r.faults, planFault(from, in, r.trips)...)
	}
	return r
}

// faultyMoves is how many migrations of each container may have faults in a round; there may be fewer.
const faultyMoves = 3

// planFault makes a fault, or two if the first would not happen without the second.
func planFault(from *rand.Rand, in climate, trips []trip) []fault {
	f := fault{
		what: in.kinds[from.IntN(len(in.kinds))], trip: from.IntN(len(trips)), side: migration.Source,
		delay: time.Duration(from.IntN(2500)) * time.Millisecond,
		lasts: lasting(from), pick: from.IntN(1 << 16),
	}
	f.move = from.IntN(min(faultyMoves, len(trips[f.trip].moves)))
	if from.IntN(2) == 0 {
		f.side = migration.Target
	}
	if from.IntN(3) == 0 {
		f.again = time.Duration(100+from.IntN(3000)) * time.Millisecond
	}
	mode := trips[f.trip].moves[f.move].mode
	steps := migration.Steps(mode)
	switch step := steps[from.IntN(len(steps))]; {
	case f.what.hitsFrozen():
		points := frozenPoints(f.what, mode)
		f.point, f.again = points[from.IntN(len(points))], 0
	case byStep[f.what] != "" && step.Undo != "" && from.IntN(4) == 0:
		undo, cause := f, f
		undo.point = agent.Fault{Side: string(step.At), Step: string(step.Undo), When: "before"}
		cause.what, cause.point = stepFails, agent.Fault{Side: "source", Step: failing(mode), When: "after"}
		return []fault{undo, cause}
	case byStep[f.what] != "" || from.IntN(2) == 0:
		f.point = agent.Fault{Side: string(step.At), Step: string(step.Name),
			When: []string{"before", "after"}[from.IntN(2)]}
	}
	return []fault{f}
}

// frozenPoints returns the points at which a fault may hit the copy left at the source.
func frozenPoints(kind what, mode migration.Mode) []agent.Fault {
	at := func(step migration.StepName, when string) agent.Fault {
		return agent.Fault{Side: string(migration.Source), Step: string(step), When: when}
	}
	points := []agent.Fault{at(migration.StepDestroy, "before")}
	switch {
	case mode == migration.Restart: // nothing is frozen
	case kind == losesJournal: // the agent finds the frozen copy
		points = append(points, at(migration.StepDump, "after"))
	case kind == thawsCopy || kind == killsKeeper: // the target may or may not run it
		points = append(points, at(migration.StepSend, "after"), at(migration.StepForward, "before"))
	}
	if mode == migration.PostCopy || mode == migration.Hybrid { // the source's pages are needed
		points = append(points, at(migration.StepPush, "before"))
	}
	return points
}

// lasting returns how long a link is broken: usually for less than an agent's timeout, sometimes longer.
func lasting(from *rand.Rand) time.Duration {
	most := 2000
	if from.IntN(3) == 0 {
		most = 8000
	}
	return time.Duration(100+from.IntN(most)) * time.Millisecond
}

// failing returns a step whose failure undoes all steps before it.
func failing(mode migration.Mode) string {
	if mode == migration.Restart {
		return string(migration.StepStop)
	}
	return string(migration.StepDump)
}

// TestPlan: the same seed gives the same plan, another seed another plan, and all kinds of faults occur.
func TestPlan(t *testing.T) {
	modes := [][]migration.Mode{anyMode, anyMode, {migration.Cold}}
	plan := func(seed uint64) (all []round) {
		for number := range 200 {
			all = append(all, planRound(seed, number, 3, changing(), modes))
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
			if f.trip >= len(r.trips) || f.move >= len(r.trips[f.trip].moves) {
				t.Errorf("%v is about none of the migrations of %d containers", f, len(r.trips))
			}
		}
	}
	for _, kind := range rougher().kinds {
		if !seen[kind] {
			t.Errorf("nothing of kind %q in 200 rounds", kind)
		}
	}
}
