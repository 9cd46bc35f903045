package migration

import "time"

// Action is something that the agent must do. The agent executes actions in the order of the list. Do, Undo
// and CheckArrived begin in that order and run beside the actions that follow: their end comes back as an
// event.
type Action interface{ isAction() }

type (
	// Journal makes a record durable. The actions after it may be executed only then. If the record cannot
	// be written, the agent acts as after a crash: it drops the rest of the list and the machine, ends the
	// step under way, and calls Resume with the record that is durable.
	Journal struct{ Record Record }

	// Do begins a step. It ends as StepDone or StepFailed.
	Do struct{ Step StepName }

	// Undo begins the undo of a step. It ends as StepDone or StepFailed. It must tolerate a step that never
	// began.
	Undo struct{ Step StepName }

	// Interrupt ends the step under way as soon as possible. It still ends as StepDone or StepFailed.
	Interrupt struct{ Step StepName }

	// EmitFinal lets the send emit the final marker.
	EmitFinal struct{}

	// Proceed lets the restore resume the processes.
	Proceed struct{}

	// Deny answers FinalMarker (Step is send) or Ready (Step is restore): the step may not go on, and must
	// end as StepFailed.
	Deny struct{ Step StepName }

	// Send sends a message to the peer, over the session if there is one. Without a session, a message that
	// does not need it goes by a call of its own. The message may get lost.
	Send struct{ Message Message }

	// AskOutcome asks the target for the outcome, by a call of its own. The answer comes back as Received;
	// if none comes, Tick asks again.
	AskOutcome struct{ Abort bool }

	// Answer is the answer to Asked.
	Answer struct{ Message Message }

	// CheckArrived asks the engine for the state of an arrival, and ends an arrival that waits. It ends as
	// Arrived or as StepFailed of StepCheck.
	CheckArrived struct{}

	// Finish reports that the migration has ended on this node. It can come again after a crash.
	Finish struct {
		Result   Result
		Error    string
		Problems []Problem
	}
)

func (Journal) isAction()      {}
func (Do) isAction()           {}
func (Undo) isAction()         {}
func (Interrupt) isAction()    {}
func (EmitFinal) isAction()    {}
func (Proceed) isAction()      {}
func (Deny) isAction()         {}
func (Send) isAction()         {}
func (AskOutcome) isAction()   {}
func (Answer) isAction()       {}
func (CheckArrived) isAction() {}
func (Finish) isAction()       {}

// MessageKind is the meaning of a message between the two machines.
type MessageKind string

// The messages of the source.
const (
	KindReserve MessageKind = "reserve"
	KindAbort   MessageKind = "abort" // the container will not come
	// the source knows that the container runs at the target, and holds nothing of it any more
	KindConfirm   MessageKind = "confirm"
	KindOverruled MessageKind = "overruled" // an operator decided that the container runs at the source
)

// The messages of the target.
const (
	KindReserved MessageKind = "reserved"
	KindPrepared MessageKind = "prepared"
	KindRunning  MessageKind = "running"
	// the container did not run and never will, which is durable; with the reason, or with problems:
	// refused
	KindNeverRan MessageKind = "never-ran"
	KindPending  MessageKind = "pending" // not known yet: ask again
	KindUnknown  MessageKind = "unknown" // the target cannot know: an operator has to look
)

// NeedsSession reports whether a message means nothing without the session, because nobody would notice
// that its sender is gone.
func (k MessageKind) NeedsSession() bool {
	switch k {
	case KindReserve, KindReserved, KindPrepared:
		return true
	default:
		return false
	}
}

// Message is a message from one machine to the other. The agent may send more with it (the container's
// definition with reserve, its report with confirm).
type Message struct {
	Kind     MessageKind `json:"kind"`
	Error    string      `json:"error,omitempty"`
	Problems []Problem   `json:"problems,omitempty"`
	At       time.Time   `json:"at,omitzero"` // running: the instant of the resume, by the target's clock
	// Incarnation of the target's state; empty: the source sent the message, or a target without an
	// incarnation.
	Incarnation string `json:"incarnation,omitempty"`
	// Spans of the target's steps, by the target's clock.
	Spans []Span `json:"spans,omitempty"`
}

// Problem is one obstacle to a migration.
type Problem struct {
	What   string `json:"what"`   // for example: process 12 (worker), descriptor 7: io_uring
	Why    string `json:"why"`    // for example: CRIU cannot dump io_uring instances
	Remedy string `json:"remedy"` // what the user can do
}

// Span is a step's time on one node, by that node's clock.
type Span struct {
	Phase string    `json:"phase"`
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}
