package migration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Spec describes a migration. It is known from the beginning, and the same on both nodes except for Side.
type Spec struct {
	ID        string    `json:"id"`
	Side      Side      `json:"side"`
	Container string    `json:"container"` // its id
	Name      string    `json:"name"`
	Source    string    `json:"source"` // name of the node
	Target    string    `json:"target"`
	Mode      Mode      `json:"mode"`
	Started   time.Time `json:"started"`
}

// State is the state of a machine.
type State string

// The states of a machine.
const (
	Waiting State = "waiting"  // nothing has begun
	Forward State = "forward"  // going through the steps before the commit
	InDoubt State = "in-doubt" // source: frozen, does not know whether the target resumed
	// the container runs, or will run, at the source; at the target: it never ran here and never will
	Undoing   State = "undoing"
	Committed State = "committed" // source: it runs at the target; target: it may run here from now on
	Running   State = "running"   // target: it runs here, and the source is told until it confirms
	Done      State = "done"
)

// Result of a migration, in the words of the report.
type Result string

// The results.
const (
	Moved       Result = "moved"
	RolledBack  Result = "rolled-back"
	Refused     Result = "refused"
	ResultDoubt Result = "in-doubt"
	ResultRuns  Result = "running" // the migration is still under way
)

// recordVersion is the format of the record that this program writes. readableFrom is the oldest format
// whose readers understand it, so that a rollback to the previous release can carry on: raise it when a
// reader that ignores new fields would do harm.
const (
	recordVersion = 1
	readableFrom  = 1
)

// Record is the durable part of a machine: a new machine made from it carries on where the old one was.
type Record struct {
	Version int `json:"version"`
	// ReadableFrom is the oldest format whose readers understand this record; 0: only its own.
	ReadableFrom int   `json:"readable_from,omitempty"`
	Spec         Spec  `json:"spec"`
	State        State `json:"state"`
	// Begun are the steps that may have begun and are not undone, in order.
	Begun []StepName `json:"begun"`
	// Final: the final marker may have left (source), or has come (target).
	Final bool `json:"final"`
	// Abort: the source asks the target to end the migration if the target still can.
	Abort bool `json:"abort"`
	// Decision is the outcome at the target, once it is known.
	Decision Outcome `json:"decision,omitempty"`
	// Resolved: an operator decided that the container runs at the target, because the other node may not
	// be there to be asked.
	Resolved bool `json:"resolved,omitempty"`
	// Rebuilt: the journal was lost, and this record was rebuilt; see Rebuilt.
	Rebuilt bool `json:"rebuilt,omitempty"`
	// Overruled: an operator decided that the container runs at the source.
	Overruled bool `json:"overruled,omitempty"`
	// Incarnation of the target's state that took the reservation, at the source. Empty in journals older
	// than incarnations, and if the target reported none: then the answer of any incarnation counts, as
	// before.
	Incarnation string `json:"incarnation,omitempty"`
	// Alarm is why only an operator can decide where the container runs, and how; empty: there is no such
	// reason.
	Alarm    string    `json:"alarm,omitempty"`
	Result   Result    `json:"result"`
	Error    string    `json:"error,omitempty"`
	Problems []Problem `json:"problems,omitempty"`
	// Notes are events that did not change the result but belong in the report.
	Notes     []string  `json:"notes,omitempty"`
	Resumed   time.Time `json:"resumed,omitzero"` // the resume, by the target's clock
	Spans     []Span    `json:"spans,omitempty"`
	PeerSpans []Span    `json:"peer_spans,omitempty"`
}

// clone copies everything that a later change of the machine could reach.
func (r Record) clone() Record {
	r.Begun = slices.Clone(r.Begun)
	r.Problems = slices.Clone(r.Problems)
	r.Notes = slices.Clone(r.Notes)
	r.Spans = slices.Clone(r.Spans)
	r.PeerSpans = slices.Clone(r.PeerSpans)
	return r
}

// check refuses a record that no machine can have written.
func (r Record) check(steps []Step) error {
	if r.Version < 1 || cmp.Or(r.ReadableFrom, r.Version) > recordVersion {
		return fmt.Errorf("journal has format %d, which can be read from format %d on; this version of "+
			"godwit reads %d",
			r.Version, cmp.Or(r.ReadableFrom, r.Version), recordVersion)
	}
	states := []State{Waiting, Forward, InDoubt, Undoing, Committed, Done}
	if r.Spec.Side == Target {
		states = []State{Waiting, Forward, Undoing, Committed, Running, Done}
	}
	if !slices.Contains(states, r.State) {
		return fmt.Errorf("journal of the %s has state %q, which it cannot have",
			r.Spec.Side, bounded(string(r.State), maxName))
	}
	if len(r.Incarnation) > maxName || len(r.Alarm) > 2*maxText {
		return fmt.Errorf("journal has an incarnation of %d bytes and an alarm of %d", len(r.Incarnation),
			len(r.Alarm))
	}
	last := -1
	for _, name := range r.Begun {
		i := slices.IndexFunc(steps, func(s Step) bool { return s.Name == name })
		if i <= last {
			return fmt.Errorf("journal names step %q, unknown in mode %s at the %s or out of order",
				bounded(string(name), maxName), r.Spec.Mode, r.Spec.Side)
		}
		last = i
	}
	return nil
}

// Banned returns the record of a migration that is unknown to the target, and that the target will refuse
// for ever.
func Banned(id, source, target string, at time.Time) (Record, error) {
	spec := Spec{
		ID: id, Side: Target, Container: strings.Repeat("0", containerDigits), Name: "unknown",
		Source: source, Target: target,
		Mode: Cold, Started: at,
	}
	if err := spec.check(); err != nil {
		return Record{}, err
	}
	return Record{
		Version: recordVersion, ReadableFrom: readableFrom, Spec: spec, State: Done, Begun: []StepName{},
		Decision: NeverRan, Result: RolledBack,
		Error: "it was cancelled before this node knew of it",
	}, nil
}
