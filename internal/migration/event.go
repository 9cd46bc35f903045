package migration

import "time"

// Event is something that happened. The machine accepts any event at any time: one that does not
// fit is ignored.
type Event interface{ isEvent() }

type (
	// Start begins the migration, at the source. The target is started by the message that asks it
	// to reserve.
	Start struct{}

	// StepDone tells that a step, or an undo, has ended well. Restore's Ended is the instant of the resume.
	StepDone struct {
		Step         StepName
		Began, Ended time.Time // by this node's clock; zero: not measured
	}

	// StepFailed tells that a step, an undo or the check has ended otherwise. Problems, if the step refused.
	StepFailed struct {
		Step         StepName
		Error        string
		Problems     []Problem
		Began, Ended time.Time
		// Unsent, of the send: the final marker has not left, and never will.
		Unsent bool
	}

	// FinalMarker tells that the send is ready to emit the final marker, which it may do when it
	// gets EmitFinal. It may come as early as the send has begun, so that the journal is written
	// while the last bytes leave.
	FinalMarker struct{}

	// Ready tells that the restore stands before the resume, which it may do when it gets Proceed.
	Ready struct{ At time.Time }

	// Received is a message of the peer, over the session or as the answer to AskOutcome.
	Received struct{ Message Message }

	// Asked is the source's question for the outcome, at the target. It is answered in the same
	// list of actions. With Abort the source wants it to end.
	Asked struct{ Abort bool }

	// PeerLost tells that the session is lost. A crash of either agent loses it.
	PeerLost struct{ Error string }

	// PeerBack tells that the peer can be reached again.
	PeerBack struct{}

	// Cancel is the wish of a user, on either node.
	Cancel struct{ Reason string }

	// Timeout tells that the migration takes longer than is allowed.
	Timeout struct{ Reason string }

	// Tick repeats what has to be repeated: asking in doubt, telling that it runs, an undo that
	// failed. The agent chooses the pace, and ticks as long as the machine has not finished.
	Tick struct{}

	// Arrived answers CheckArrived.
	Arrived struct {
		Outcome Outcome
		At      time.Time // the resume, if known
	}

	// Resolve is an operator's decision of where the container runs, when one node cannot tell.
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

// Outcome is what has become of the copy at the target.
type Outcome string

// The outcomes.
const (
	NeverRan Outcome = "never-ran" // and never will
	Ran      Outcome = "ran"
)
