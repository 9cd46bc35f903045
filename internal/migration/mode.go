package migration

import (
	"fmt"
	"slices"
	"strings"
)

// Side is one of the two nodes of a migration.
type Side string

// The two sides.
const (
	Source Side = "source"
	Target Side = "target"
)

// Mode determines when memory is sent, and whether processes move or start anew.
type Mode string

// The modes. Auto stands for the mode that is chosen before the migration begins.
const (
	Cold     Mode = "cold"
	PreCopy  Mode = "pre-copy"
	PostCopy Mode = "post-copy"
	Hybrid   Mode = "hybrid"
	Restart  Mode = "restart"
	Auto     Mode = "auto"
)

// StepName names a step, or the undo of one.
type StepName string

// The steps of a migration, in their order.
const (
	StepExamine  StepName = "examine" // source: find what cannot be dumped in the container
	StepReserve  StepName = "reserve" // target: check permission and room
	StepStage    StepName = "stage"   // source: send the layers that the target lacks
	StepArrive   StepName = "arrive"  // target: prepare everything possible before the state arrives
	StepRounds   StepName = "rounds"  // source: send the memory while the container runs
	StepPrepare  StepName = "prepare" // source: start the helpers of the dump
	StepHold     StepName = "hold"    // source: packets for the container queue
	StepFreeze   StepName = "freeze"  // source: stop its processes
	StepDump     StepName = "dump"    // source: write the execution state
	StepSend     StepName = "send"    // source: images, trees, final marker
	StepReceive  StepName = "receive" // target: images, trees, final marker
	StepRestore  StepName = "restore" // target: create the processes; the commit point
	StepStop     StepName = "stop"    // source: end its processes
	StepStart    StepName = "start"   // target: start anew and wait until healthy; the commit point
	StepForward  StepName = "forward" // source: queued packets go to the target, the route follows
	StepPush     StepName = "drain"   // source: send the remote pages to the target
	StepDestroy  StepName = "destroy" // source: remove the frozen copy
	StepCleanup  StepName = "cleanup" // source: remove everything else that the migration made
	StepFinalise StepName = "settle"  // target: the source needs nothing more
)

// The undos of steps.
const (
	UndoReserve StepName = "release" // target: give back what was reserved
	UndoArrive  StepName = "discard" // target: remove the arrival
	UndoRounds  StepName = "untrack" // source: remove the tracking from the processes
	UndoPrepare StepName = "close"   // source: end the helpers of the dump, remove its files
	UndoHold    StepName = "unhold"  // source: queued packets go to the container here
	UndoFreeze  StepName = "thaw"    // source: its processes go on, whatever a dump did to them
	UndoStop    StepName = "revive"  // source: start again what was stopped
	// target: kill and remove the running copy, because an operator decided so
	UndoRestore StepName = "fence"
)

// StepCheck is the step of a StepFailed if CheckArrived could not be answered.
const StepCheck StepName = "check"

// Step is one step of a mode.
type Step struct {
	Name StepName
	At   Side     // side that does the step; the other side asks for it or waits for it
	Undo StepName // empty: nothing to undo, or undone by the undo of an earlier step
	// Phase is the name under which the report shows the step's time.
	Phase string
	// Ask is the message that asks the target for this step; empty: the step begins by itself after the
	// target's previous step, whatever the source does meanwhile.
	Ask MessageKind
	// Answer is the message that tells the source that the target has done the step; empty: the source does
	// not wait. The message may come before the source waits for it.
	Answer MessageKind
	// Final marks the step that emits the final marker: from then on the source may not roll back by itself.
	Final bool
	// Commit marks the commit point. Steps before it are undone on failure, steps after it are
	// repeated until done. Its own undo is for an operator's decision only.
	Commit bool
	// Joined steps are journaled together with the step before them, so that no disk write separates the
	// two. They are undone even if they did not begin, which every undo must tolerate.
	Joined bool
}

// Steps returns the list of steps of a mode, for both sides, or nil if there is no such mode yet.
func Steps(mode Mode) []Step {
	switch mode {
	case Cold:
		return coldSteps()
	case PreCopy, PostCopy, Hybrid:
		// These modes differ in when pages are sent. A pre-copy may turn into a hybrid while it is under
		// way, so all of them have the same steps.
		return liveSteps()
	case Restart:
		return restartSteps()
	default:
		return nil
	}
}

// liveSteps are the steps of modes that send memory while the container runs.
func liveSteps() []Step {
	// Rounds come before the prepare step: rounds may take long, and the preparation must be fresh at the
	// freeze.
	steps := insertBefore(coldSteps(), StepPrepare,
		Step{Name: StepRounds, At: Source, Phase: "rounds", Undo: UndoRounds})
	// After the commit, the newest state is at the target, and the remote pages are at the source: until
	// the post-copy push has ended, each node has data that the other lacks.
	return insertBefore(steps, StepDestroy, Step{Name: StepPush, At: Source, Phase: "drain", Joined: true})
}

// restartSteps are the steps of the mode that moves no execution state: the processes end at the source,
// and new processes start at the target from the same files. From the beginning of the start, the target's
// processes run on probation, and no new connection reaches them. The commit is the moment when they are
// found healthy; until then the source has a copy that can be started again. If the start fails, they have
// been stopped.
func restartSteps() []Step {
	steps := insertBefore(coldSteps(), StepPrepare,
		Step{Name: StepRounds, At: Source, Phase: "rounds", Undo: UndoRounds})
	replace := func(name StepName, s Step) {
		steps[slices.IndexFunc(steps, func(s Step) bool { return s.Name == name })] = s
	}
	replace(StepFreeze, Step{Name: StepStop, At: Source, Phase: "stop", Undo: UndoStop, Joined: true})
	replace(StepRestore, Step{Name: StepStart, At: Target, Phase: "start", Undo: UndoRestore,
		Answer: KindRunning, Commit: true, Joined: true})
	return slices.DeleteFunc(steps, func(s Step) bool { return s.Name == StepDump })
}

func insertBefore(steps []Step, name StepName, s Step) []Step {
	i := slices.IndexFunc(steps, func(s Step) bool { return s.Name == name })
	return slices.Insert(steps, i, s)
}

func coldSteps() []Step {
	return []Step{
		{Name: StepExamine, At: Source, Phase: "examine"},
		{Name: StepReserve, At: Target, Phase: "reserve", Undo: UndoReserve, Ask: KindReserve,
			Answer: KindReserved},
		{Name: StepStage, At: Source, Phase: "stage"},
		{Name: StepArrive, At: Target, Phase: "arrive", Undo: UndoArrive, Answer: KindPrepared},
		{Name: StepPrepare, At: Source, Phase: "prepare", Undo: UndoPrepare},
		{Name: StepHold, At: Source, Phase: "hold", Undo: UndoHold},
		{Name: StepFreeze, At: Source, Phase: "freeze", Undo: UndoFreeze, Joined: true},
		{Name: StepDump, At: Source, Phase: "dump", Joined: true},
		{Name: StepSend, At: Source, Phase: "transfer", Final: true, Joined: true},
		{Name: StepReceive, At: Target, Phase: "receive"},
		{Name: StepRestore, At: Target, Phase: "restore", Undo: UndoRestore, Answer: KindRunning,
			Commit: true, Joined: true},
		{Name: StepForward, At: Source, Phase: "forward"},
		{Name: StepDestroy, At: Source, Phase: "destroy", Joined: true},
		{Name: StepCleanup, At: Source, Phase: "cleanup", Joined: true},
		{Name: StepFinalise, At: Target, Phase: "settle", Ask: KindConfirm},
	}
}

// Modes lists every mode that a user may name, in the order of the documentation.
func Modes() []Mode {
	return []Mode{Cold, PreCopy, PostCopy, Hybrid, Restart, Auto}
}

// Available reports whether this version can migrate in a mode.
func (m Mode) Available() bool { return len(Steps(m)) > 0 }

// MemoryAhead reports whether memory can be at the target, or on its way there, before the container is
// stopped or frozen.
func (m Mode) MemoryAhead() bool { return m == PreCopy || m == PostCopy || m == Hybrid }

// ParseMode finds the mode that a user named. The error lists the modes that exist.
func ParseMode(name string) (Mode, error) {
	var have []string
	for _, m := range Modes() {
		if name == string(m) {
			return m, nil
		}
		have = append(have, string(m))
	}
	return "", fmt.Errorf("no such mode: %q; available: %s", bounded(name, maxName), strings.Join(have, ", "))
}
