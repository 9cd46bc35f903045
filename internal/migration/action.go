package migration

import "time"

// Action is something that the agent must do. Actions are executed in the order of the list. Do, Undo and
// CheckArrived are begun in that order and go on beside what follows: their end comes back as an event.
type Action interface{ isAction() }

type (
	// Journal makes a record durable. Only when it is may the actions after it be executed. If it
	// cannot be written, the agent does as after a crash: it drops the rest of the list and the
	// machine, ends the step under way, and calls Resume with the record that is durable.
	Journal struct{ Record Record }

	// Do begins a step. It ends as StepDone or StepFailed.
	Do struct{ Step StepName }

	// Undo begins the undo of a step. It ends as StepDone or StepFailed. It must bear that the step
	// never began.
	Undo struct{ Step StepName }

	// Interrupt ends the step under way as soon as possible. It still ends as StepDone or StepFailed.
	Interrupt struct{ Step StepName }

	// EmitFinal lets the send emit the final marker.
	EmitFinal struct{}

	// Proceed lets the restore resume the processes.
	Proceed struct{}

	// Deny answers FinalMarker (Step is send) or Ready (Step is restore): it may not, and must end
	// as StepFailed.
	Deny struct{ Step StepName }

	// Send tells the peer, over the session if it stands. If not, and the message does not need the
	// session, by a call of its own. It may get lost.
	Send struct{ Message Message }

	// AskOutcome asks the target what became of it, by a call of its own. The answer comes back as
	// Received; if none comes, Tick asks again.
	AskOutcome struct{ Abort bool }

	// Answer is the answer to Asked.
	Answer struct{ Message Message }

	// CheckArrived asks the engine what became of an arrival, ending it if it waits. It ends as Arrived or as
	// StepFailed of StepCheck.
	CheckArrived struct{}

	// Finish tells that the migration has ended on this node. It can come again after a crash.
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

// MessageKind says what a message between the two machines means.
type MessageKind string

// The messages of the source.
const (
	KindReserve MessageKind = "reserve"
	KindAbort   MessageKind = "abort" // it will not come
	// the source knows that it runs at the target, and has nothing left
	KindConfirm   MessageKind = "confirm"
	KindOverruled MessageKind = "overruled" // an operator decided that it runs at the source
)

// The messages of the target.
const (
	KindReserved MessageKind = "reserved"
	KindPrepared MessageKind = "prepared"
	KindRunning  MessageKind = "running"
	// and never will, which is durable; with the reason, or with problems: refused
	KindNeverRan MessageKind = "never-ran"
	KindPending  MessageKind = "pending" // not known yet: ask again
	KindUnknown  MessageKind = "unknown" // it cannot be known there: an operator has to look
)

// NeedsSession tells of a message that means nothing without the session: nobody would notice that
// its sender is gone.
func (k MessageKind) NeedsSession() bool {
	switch k {
	case KindReserve, KindReserved, KindPrepared:
		return true
	default:
		return false
	}
}

// Message is what one machine tells the other. The agent may send more beside it (the container's
// definition with reserve, its report with confirm).
type Message struct {
	Kind     MessageKind `json:"kind"`
	Error    string      `json:"error,omitempty"`
	Problems []Problem   `json:"problems,omitempty"`
	At       time.Time   `json:"at,omitzero"` // running: the instant of the resume, by the target's clock
	// Incarnation of the target's state; empty: the source says it, or a target that knows of none.
	Incarnation string `json:"incarnation,omitempty"`
	// Spans of the target's steps, by the target's clock.
	Spans []Span `json:"spans,omitempty"`
}

// Problem is one thing that stands against a migration.
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
