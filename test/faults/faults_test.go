// Package faults injects every kind of fault at every step of a migration, and checks what must hold in any
// case: the container runs at exactly one node at the end, its client noticed at most a gap, nothing is
// left over, and the reports describe what happened.
//
// The lab, CRIU, runc and Redis are real. A fault is a value: a step, a side, and a kind.
package faults

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

func TestMain(m *testing.M) {
	lab.RunHidden()
	os.Exit(m.Run())
}

// fault is one fault, and its point.
type fault struct {
	side string // source or target: whose step it is
	step string
	when string // before or after the step
	kind kind
}

func (f fault) String() string {
	return strings.Join([]string{f.side, f.step, f.when, string(f.kind)}, "-")
}

// atAgent returns the agent's own fault at this point. For faults from outside, the agent waits there.
func (f fault) atAgent() agent.FaultKind {
	switch f.kind {
	case stepFails:
		return agent.FaultFail
	case stepPanics:
		return agent.FaultPanic
	}
	return agent.FaultPause
}

// point returns where the agent has to stop for the fault.
func (f fault) point() agent.Fault { return agent.Fault{Side: f.side, Step: f.step, When: f.when} }

type kind string

const (
	killSource kind = "kill-source" // the source's agent
	killTarget kind = "kill-target"
	killBoth   kind = "kill-both"
	linkBlinks kind = "link-blinks" // down until the agents have noticed, then up again
	linkLoses  kind = "link-loses"  // down for less than the agents' timeout: lost packets are sent again
	stepFails  kind = "fail"
	stepPanics kind = "panic"
	userStops  kind = "cancel"
	agentEnds  kind = "stop" // the agent of the step is told to end
	turnsSick  kind = "sick" // the copy that the target will start ends at once
)

// The steps at which faults can happen, in order, by side.
var (
	sourceSteps = []string{"examine", "stage", "prepare", "hold", "freeze", "dump", "send"}
	targetSteps = []string{"reserve", "arrive", "receive", "restore"}
	afterSteps  = []string{"forward", "drain", "destroy", "cleanup"}
)

// faults lists all combinations. Steps after the commit are not undone, but repeated until they succeed;
// then nobody can cancel.
func faults() []fault {
	var all []fault
	add := func(side, when string, steps []string, kinds ...kind) {
		for _, step := range steps {
			for _, k := range kinds {
				all = append(all, fault{side, step, when, k})
			}
		}
	}
	add("source", "before", sourceSteps, killSource, killTarget, linkBlinks, linkLoses, stepFails, userStops)
	add("target", "before", targetSteps, killSource, killTarget, linkBlinks, linkLoses, stepFails, userStops)
	add("source", "after", []string{"send"}, killSource, killTarget, killBoth, linkBlinks, stepFails,
		userStops)
	add("target", "after", []string{"receive", "restore"}, killSource, killTarget, killBoth, linkBlinks,
		stepFails, userStops)
	add("source", "before", []string{"forward", "destroy", "cleanup"}, killSource, killTarget, linkBlinks,
		linkLoses, stepFails)
	add("target", "before", []string{"settle"}, killSource, killTarget, linkBlinks, stepFails)
	add("source", "before", []string{"stage", "send"}, agentEnds)
	add("target", "before", []string{"arrive", "restore"}, agentEnds)
	// The undo of a step can fail, too.
	add("source", "before", []string{"thaw", "unhold", "close"}, killSource, stepFails)
	add("target", "before", []string{"discard", "release"}, killTarget, stepFails)
	return append(all, panics()...)
}

// panics lists steps that panic: the migration fails, or repeats the step, and the agents continue.
func panics() []fault {
	var all []fault
	for _, at := range []agent.Fault{
		{Side: "source", Step: "send", When: "before"}, {Side: "target", Step: "restore", When: "before"},
		{Side: "source", Step: "destroy", When: "before"}, {Side: "source", Step: "thaw", When: "before"},
	} {
		all = append(all, fault{at.Side, at.Step, at.When, stepPanics})
	}
	return all
}

// undone reports whether the fault hits an undo, which needs another failure first.
func (f fault) undone() bool {
	switch f.step {
	case "thaw", "unhold", "close", "untrack", "revive", "discard", "release":
		return true
	}
	return false
}

// moves reports whether the container must have moved at the end; not sure if two events race.
func (f fault) moves() (moves, sure bool) {
	if f.kind == linkLoses {
		return true, true
	}
	if f.fromOutside() {
		return f.movesNevertheless(), true
	}
	switch f.point() {
	case agent.Fault{Side: "source", Step: "examine", When: "before"}:
		return false, f.kind != killTarget // it may be back before it is asked
	case agent.Fault{Side: "target", Step: "receive", When: "before"}:
		return false, f.kind != linkBlinks // everything may have come just before
	case agent.Fault{Side: "source", Step: "send", When: "after"}:
		return false, false // the target continues meanwhile
	case agent.Fault{Side: "target", Step: "receive", When: "after"}:
		return false, f.kind == stepFails || f.kind == stepPanics || f.kind == killTarget ||
			f.kind == killBoth
	case agent.Fault{Side: "target", Step: "restore", When: "before"},
		agent.Fault{Side: "target", Step: "start", When: "before"},
		// everything has come, so the source is not needed
		agent.Fault{Side: "target", Step: "healthy", When: "before"}:
		return f.kind == killSource || f.kind == linkBlinks, f.kind != userStops
	case agent.Fault{Side: "target", Step: "restore", When: "after"},
		agent.Fault{Side: "target", Step: "start", When: "after"}: // it runs there
		return true, true
	}
	after := slices.Contains(afterSteps, f.step) || f.step == "settle"
	return after, true
}

// words are some words of the source's report if the container did not move.
func (f fault) words() []string {
	switch f.kind {
	case stepFails, stepPanics:
		return []string{"on purpose"}
	case userStops:
		return []string{"cancelled"}
	case agentEnds:
		return []string{"was told to end"}
	case linkBlinks, linkLoses:
		return []string{"was silent", "which volumes it shares"}
	case turnsSick:
		return []string{"did not become healthy"}
	case somebodyThaws:
		return []string{"thawed the frozen copy"}
	case journalLost:
		return []string{"made anew"}
	case decideAtSource:
		return []string{"operator decided", "restarted"}
	default:
		return []string{"restarted", "lost", "failed"}
	}
}

// TestPanics makes steps panic: in a cold migration, with -short each of them, too.
func TestPanics(t *testing.T) { runFaults(t, migration.Cold, panics(), 1) }

// TestFaults runs every combination in a cold migration.
func TestFaults(t *testing.T) { runFaults(t, migration.Cold, faults(), 8) }

// runFaults runs combinations one after the other, with one container that moves back and forth. Broken
// links are tested with impatient agents, all others with patient ones. With -short it runs one of oneOf
// combinations.
func runFaults(t *testing.T, mode migration.Mode, all []fault, oneOf int) {
	t.Parallel()
	runFaultsVia(t, embedded, mode, all, oneOf)
}

// runFaultsVia does the same with a container of an engine.
func runFaultsVia(t *testing.T, v via, mode migration.Mode, all []fault, oneOf int) {
	t.Helper()
	for name, peerTimeout := range map[string]string{"patient": patient, "soon": soon} {
		selected := slices.Clone(all)
		if testing.Short() {
			selected = selected[:0]
			for i := 0; i < len(all); i += oneOf {
				selected = append(selected, all[i])
			}
		}
		selected = slices.DeleteFunc(selected,
			func(f fault) bool { return (f.kind == linkBlinks) != (peerTimeout == soon) })
		if len(selected) == 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			w := newWorldVia(t, v, mode, peerTimeout)
			w.learnOrder(t)
			w.slowDown(t)
			for _, f := range selected {
				if !t.Run(f.String(), func(t *testing.T) { w.suffer(t, f) }) && w.broken {
					t.Fatal("the world cannot be used any more")
				}
			}
			w.clientIsHappy(t)
		})
	}
}

// suffer migrates while a fault happens, and checks what must hold then.
func (w *world) suffer(t *testing.T, f fault) {
	w.broken = true
	from, to := w.at, other(w.at)
	node := from
	if f.side == "target" {
		node = to
	}
	w.meet(t)
	if f.lacksImage() {
		w.forgetImage(t, to)
	}
	w.set(t, node, f.point(), f.atAgent())
	if f.kind == stateBack {
		w.set(t, to, beforeReceive, agent.FaultPause)
	}
	if f.undone() {
		failing := "dump"
		if w.mode == migration.Restart {
			failing = "stop"
		}
		w.set(t, from, agent.Fault{Side: "source", Step: failing, When: "after"}, agent.FaultFail)
	}
	id := w.begin(t, from, to)
	if f.kind == stateBack {
		w.keepOlder(t, to)
	}
	if f.atAgent() == agent.FaultPause {
		w.reach(t, node, f.point())
		w.happen(t, f, from, to, id)
	}
	w.settle(t, id)
	if f.lacksImage() {
		w.loadRedis(t, to) // restore the earlier state
	}
	if !f.forgets() {
		w.inOrder(t)
	}
	w.unset(t)
	w.reportsTell(t, f, from, to, id)
	if f.forgets() {
		w.moveOn(t)
	}
	w.clientGoesOn(t)
	w.memoryIsRight(t)
	w.broken = false
}

// happen makes the fault happen while a step waits for it, and then lets the step continue.
func (w *world) happen(t *testing.T, f fault, from, to, id string) {
	t.Helper()
	node := from
	if f.side == "target" {
		node = to
	}
	over := w.others(t, f, from, to, id)
	switch f.kind {
	case killSource:
		w.killAgent(t, from)
	case killTarget:
		w.killAgent(t, to)
	case killBoth:
		w.killAgent(t, from)
		w.killAgent(t, to)
	case userStops:
		w.cancel(t, from, id)
	case agentEnds:
		w.stopAgent(t, node)
	case linkBlinks, linkLoses:
		w.linkDown(t)
	case turnsSick:
		w.infect(t, to)
	case stepFails, stepPanics:
	}
	w.goOn(t, node, f.point())
	if f.kind == linkLoses {
		w.waitLost(t)
		w.linkUp(t)
	}
	if f.kind == linkBlinks {
		w.waitNoticed(t, from, id)
		w.linkUp(t)
	}
	w.reviveAgents(t)
	over()
}

func other(node string) string {
	if node == "a" {
		return "b"
	}
	return "a"
}
