package migration

import "time"

// Event is something that happened. The machine accepts any event at any time, and ignores an event that
// does not fit.
type Event interface{ isEvent() }

type (
	// Start begins the migration, at the source. The target starts with the message that asks it to
	// reserve.
	Start struct{}

	// StepDone reports that a step, or an undo, has succeeded. Restore's Ended is the instant of the
	// resume.
	StepDone struct {
		Step         StepName
		Began, Ended time.Time // by this node's clock; zero: not measured
	}

	// StepFailed reports that a step, an undo or the check has failed. Problems are set if the step
	// refused.
	StepFailed struct {
		Step         StepName
		Error        string
		Problems     []Problem
		Began, Ended time.Time
		// Unsent, of the send: the final marker was not sent, and never will be.
		Unsent bool
	}

	// FinalMarker reports that the send is ready to emit the final marker, which it may do when it gets
	// EmitFinal. The event may come as soon as the send has begun, so that the journal is written while the
	// last bytes leave.
	FinalMarker struct{}

	// Ready reports that the restore waits before the resume, which it may do when it gets Proceed.
	Ready struct{ At time.Time }

	// Received is a message of the peer, over the session or as the answer to AskOutcome.
	Received struct{ Message Message }

	// Asked is the source's question for the outcome, at the target. The same list of actions answers it.
	// With Abort, the source wants the migration to end.
	Asked struct{ Abort bool }

	// PeerLost reports that the session is lost. A crash of either agent loses it.
	PeerLost struct{ Error string }

	// PeerBack reports that the peer can be reached again.
	PeerBack struct{}

	// Cancel is a user's request, on either node.
	Cancel struct{ Reason string }

	// Timeout reports that the migration takes longer than is allowed.
	Timeout struct{ Reason string }

	// Tick repeats actions that have to be repeated: the question in doubt, the report that the container
	// runs, an undo that failed. The agent chooses the pace, and ticks until the machine has finished.
	Tick struct{}

	// Arrived answers CheckArrived.
	Arrived struct {
		Outcome Outcome
		At      time.Time // the resume, if known
	}

	// Resolve is an operator's decision where the container runs, when one node cannot know.
	Resolve struct{ RunsAt Side }
)

func (Start) isEvent()       {}
func (StepDone) isEvent()    {}
func (StepFailed) isEvent()  {}
func (FinalMarker) isEvent() {}
func (Ready) isEvent()       {}
func (Received) isEvent()    {}
func (Asked) isEvent()       {}
func (PeerLost) isEvent()    {}
func (PeerBack) isEvent()    {}
func (Cancel) isEvent()      {}
func (Timeout) isEvent()     {}
func (Tick) isEvent()        {}
func (Arrived) isEvent()     {}
func (Resolve) isEvent()     {}

// Outcome is the fate of the copy at the target.
type Outcome string

// The outcomes.
const (
	NeverRan Outcome = "never-ran" // and it never will
	Ran      Outcome = "ran"
)
