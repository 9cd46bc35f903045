package migration

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Errors of Machine.Step. The machine's state is unchanged when Step returns one of them.
var (
	// ErrUnexpected: the event does not fit (late, duplicate, of the other side). It can be ignored.
	ErrUnexpected = errors.New("event does not fit the state of the migration")
	// ErrTooLate: a user wants to cancel a migration that is past its commit point, or over.
	ErrTooLate = errors.New("too late to cancel")
	// ErrNotInDoubt: an operator wants to resolve a migration that decides by itself.
	ErrNotInDoubt = errors.New("nothing to resolve")
)

// Machine is one side of one migration. It is not safe for concurrent use.
//
// rec holds the state that must survive a crash; the other fields describe the agent's current work, and
// die with it.
type Machine struct {
	rec   Record
	steps []Step // source: all of them; target: its own

	at       int      // index of the current step, which is under way or waited for
	busy     StepName // the agent's current task: a step, an undo, the check
	stopping bool     // busy was interrupted, and its effects are undone when it ends
	unsure   bool     // target: only the engine knows whether the container runs
	undone   bool     // an undo has ended since the last journal
	told     bool     // the peer was told to give up
	withheld bool     // source: the target did not allow this copy's removal; the copy is complete
	cut      bool     // source: pages are here that the target lacks, and the connection to it is broken
	// source: a step that the target finished before this side waited for it; empty: none
	heard StepName

	readyAt time.Time // target: when the restore asked whether it may resume

	out []Action
}

// rules say how an event moves a machine at its node: sourceSide or targetSide.
type rules interface {
	resume()                            // carries on after a crash of the agent
	step(Event) error                   // handles the events other than the end of a task
	did(StepDone)                       // carries on after a task that succeeded
	failed(e StepFailed, reason string) // carries on after a task that failed
	resolvable(Resolve) error           // refuses a decision of an operator that is not needed
}

// New makes the machine of one side. The source's machine waits for Start, the target's for the message
// reserve.
func New(spec Spec) (*Machine, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	rec := Record{Version: recordVersion, ReadableFrom: readableFrom, Spec: spec, State: Waiting,
		Begun: []StepName{}, Result: ResultRuns}
	return &Machine{rec: rec, steps: sideSteps(spec)}, nil
}

// Resume makes a machine from the record that was durable when the agent crashed, and returns the actions
// with which the machine carries on.
func Resume(rec Record) (*Machine, []Action, error) {
	if err := rec.Spec.check(); err != nil {
		return nil, nil, fmt.Errorf("resume a migration: %w", err)
	}
	m := &Machine{rec: rec.clone(), steps: sideSteps(rec.Spec)}
	if err := rec.check(m.steps); err != nil {
		return nil, nil, fmt.Errorf("resume migration %s: %w", rec.Spec.ID, err)
	}
	// fields that a newer program added are not kept
	m.rec.Version, m.rec.ReadableFrom = recordVersion, readableFrom
	if n := len(rec.Begun); n > 0 {
		m.at = m.index(rec.Begun[n-1])
	}
	m.rules().resume()
	return m, m.take(), nil
}

func (m *Machine) rules() rules {
	if m.rec.Spec.Side == Source {
		return sourceSide{m}
	}
	return targetSide{m}
}

// sideSteps are the steps that one side's machine goes through.
func sideSteps(spec Spec) []Step {
	steps := Steps(spec.Mode)
	if spec.Side == Target {
		steps = slices.DeleteFunc(steps, func(s Step) bool { return s.At != Target })
	}
	return steps
}

// Record returns the record that would be journaled now. It is for reading; only a Journal action asks to
// write.
func (m *Machine) Record() Record { return m.rec.clone() }

// Alarm is the reason why only an operator can decide where the container runs; empty: there is none.
func (m *Machine) Alarm() string { return m.rec.Alarm }

// Step takes an event and returns the actions for it, in order. Only the errors ErrTooLate and
// ErrNotInDoubt concern the user. After any error the agent does nothing but the actions.
func (m *Machine) Step(event Event) ([]Action, error) {
	var err error
	switch e := event.(type) {
	case StepDone:
		err = m.ended(e.Step, e.Began, e.Ended)
		if err == nil {
			m.rules().did(e)
		}
	case StepFailed:
		err = m.ended(e.Step, e.Began, e.Ended)
		if err == nil {
			m.stepFailed(e)
		}
	default:
		err = m.rules().step(event)
	}
	return m.take(), err
}

func (m *Machine) stepFailed(e StepFailed) {
	reason := fmt.Sprintf("%s failed: %s", e.Step, e.Error)
	if len(e.Problems) > 0 {
		reason = e.Error // a refusal, not a failure
	}
	m.rules().failed(e, reason)
}

// ended notes the end of the agent's current task.
func (m *Machine) ended(step StepName, began, ended time.Time) error {
	if m.busy == "" || step != m.busy {
		return fmt.Errorf("%w: end of %s", ErrUnexpected, step)
	}
	m.busy = ""
	if phase := m.phase(step); phase != "" && !began.IsZero() && len(m.rec.Spans) < maxSpans {
		m.rec.Spans = append(m.rec.Spans, Span{Phase: phase, Start: began, End: ended})
	}
	return nil
}

// phase returns the report's name for a step or an undo.
func (m *Machine) phase(step StepName) string {
	if i := m.index(step); i >= 0 {
		return m.steps[i].Phase
	}
	if step == StepCheck {
		return ""
	}
	return string(step)
}

func (m *Machine) index(step StepName) int {
	return slices.IndexFunc(m.steps, func(s Step) bool { return s.Name == step })
}

func (m *Machine) commitIndex() int {
	return slices.IndexFunc(m.steps, func(s Step) bool { return s.Commit })
}

func (m *Machine) emit(actions ...Action) { m.out = append(m.out, actions...) }

func (m *Machine) journal() {
	m.undone = false
	m.emit(Journal{Record: m.rec.clone()})
}

func (m *Machine) take() []Action {
	out := m.out
	m.out = nil
	return out
}

// mark notes that a step and the steps joined to it may have begun. It reports whether the record changed.
func (m *Machine) mark(i int) bool {
	news := false
	for j := i; j < len(m.steps) && (j == i || m.steps[j].Joined); j++ {
		s := m.steps[j]
		if s.At != m.rec.Spec.Side && s.Undo == "" || s.At != m.rec.Spec.Side && s.Commit {
			continue // belongs to the other side
		}
		if !slices.Contains(m.rec.Begun, s.Name) {
			m.rec.Begun = append(m.rec.Begun, s.Name)
			news = true
		}
	}
	return news
}

// do begins a step of this side, journaled first.
func (m *Machine) do(i int) {
	m.at = i
	if m.mark(i) {
		m.journal()
	}
	m.busy = m.steps[i].Name
	m.emit(Do{Step: m.busy})
}

// blame records the first reason of a failure; later ones are its consequences.
func (m *Machine) blame(reason string, problems []Problem) {
	if m.rec.Error != "" {
		return
	}
	m.rec.Error = bounded(reason, maxText)
	m.rec.Problems = boundedProblems(problems)
}

// blameToo adds the target's reason for a failure of which the source saw only the effect.
func (m *Machine) blameToo(reason string, problems []Problem) {
	if m.rec.Error != "" {
		reason = m.rec.Error + "; " + reason
		m.rec.Error = ""
	}
	m.blame(reason, problems)
}

// note records an event that did not change the result.
func (m *Machine) note(text string) {
	text = bounded(text, maxText)
	if len(m.rec.Notes) < maxNotes && !slices.Contains(m.rec.Notes, text) {
		m.rec.Notes = append(m.rec.Notes, text)
	}
}

// forgive turns a failure that did not stop the container from moving into a note.
func (m *Machine) forgive() {
	if m.rec.Error != "" {
		m.note(m.rec.Error)
	}
	m.rec.Error, m.rec.Problems = "", nil
}

// halt rolls back as soon as no task is under way.
func (m *Machine) halt() {
	if m.busy == "" {
		m.rollBack()
	} else if !m.stopping {
		m.stopping = true
		m.emit(Interrupt{Step: m.busy})
	}
}

// rollBack begins to undo. Steps that were journaled ahead and not begun are not undone.
func (m *Machine) rollBack() {
	m.stopping, m.unsure = false, false
	m.rec.State = Undoing
	m.rec.Begun = slices.DeleteFunc(m.rec.Begun, func(s StepName) bool { return m.index(s) > m.at })
	if m.rec.Spec.Side == Target {
		m.rec.Decision = NeverRan
		m.journal()
		targetSide{m}.tellNeverRan()
	}
	m.undo()
}

// undo begins the next undo, last step first, or finishes if there is none.
func (m *Machine) undo() {
	for m.busy == "" && len(m.rec.Begun) > 0 {
		last := m.steps[m.index(m.rec.Begun[len(m.rec.Begun)-1])]
		name := m.undoOf(last)
		if name == "" {
			m.pop()
			continue
		}
		if last.At != m.rec.Spec.Side {
			sourceSide{m}.tellGiveUp()
			m.pop()
			continue
		}
		if m.undone {
			m.journal()
		}
		m.busy = name
		m.emit(Undo{Step: name})
	}
	if m.busy == "" {
		m.finish()
	}
}

// undoOf returns the undo of a step. The commit has one only if an operator overrules it.
func (m *Machine) undoOf(s Step) StepName {
	if s.Commit && !m.rec.Overruled {
		return ""
	}
	return s.Undo
}

func (m *Machine) pop() { m.rec.Begun = m.rec.Begun[:len(m.rec.Begun)-1] }

// undoEnded carries on after the end of a task during the rollback.
func (m *Machine) undoEnded(step StepName, failure string) {
	if n := len(m.rec.Begun); n > 0 && m.undoOf(m.steps[m.index(m.rec.Begun[n-1])]) == step {
		if failure != "" {
			m.note(failure)
			return // Tick tries again
		}
		m.pop()
		m.undone = true
		if step == UndoRestore {
			m.journal()
			targetSide{m}.tellNeverRan()
		}
	}
	m.undo()
}

// finish ends the migration on this node.
func (m *Machine) finish() {
	switch {
	case m.rec.State != Undoing:
		m.rec.Result = Moved
	case len(m.rec.Problems) > 0:
		m.rec.Result = Refused
	default:
		m.rec.Result = RolledBack
	}
	m.rec.State = Done
	m.journal()
	m.emitFinish()
}

func (m *Machine) emitFinish() {
	m.emit(Finish{Result: m.rec.Result, Error: m.rec.Error, Problems: slices.Clone(m.rec.Problems)})
}

// unexpected returns the error for an event that does not fit.
func (m *Machine) unexpected(event any) error {
	return fmt.Errorf("%w: %T while %s", ErrUnexpected, event, m.rec.State)
}
