package migration

import (
	"fmt"
	"slices"
	"time"
)

// targetSide is the machine with the rules of the target: how each event moves the migration there.
type targetSide struct{ *Machine }

// resume carries on after a crash of the target's agent.
func (m targetSide) resume() {
	switch m.rec.State {
	case Waiting, Forward:
		m.blame(fmt.Sprintf("the agent of %s was restarted", m.rec.Spec.Target), nil)
		if slices.Contains(m.rec.Begun, m.steps[m.commitIndex()].Name) {
			m.checkArrived()
		} else {
			m.rollBack()
		}
	case Committed:
		m.checkArrived()
	case Running:
		m.ticks()
	case Undoing:
		m.tellNeverRan()
		m.undo()
	case Done:
		m.emitFinish()
	}
}

// step handles the events other than the end of a step.
func (m targetSide) step(event Event) error {
	switch e := event.(type) {
	case Ready:
		return m.ready(e)
	case Received:
		return m.hears(e.Message)
	case Asked:
		m.asked(e)
	case PeerLost:
		if !m.rec.Final {
			m.givesUp(fmt.Sprintf("the connection to %s is lost: %s", m.rec.Spec.Source, e.Error))
		}
	case PeerBack:
		if m.rec.State == Running {
			m.ticks()
		}
	case Timeout:
		m.givesUp("it took too long: " + e.Reason)
	case Cancel:
		if m.rec.State == Committed || m.rec.State == Running || m.rec.State == Done {
			return fmt.Errorf("%w: %s was handed over to %s", ErrTooLate, m.rec.Spec.Name, m.rec.Spec.Target)
		}
		m.givesUp("cancelled: " + e.Reason)
	case Tick:
		m.ticks()
	case Arrived:
		return m.arrived(e)
	case Resolve:
		return m.resolves(e)
	default:
		return m.unexpected(event)
	}
	return nil
}

// did carries on after the end of a task that succeeded.
func (m targetSide) did(e StepDone) {
	switch m.rec.State {
	case Forward:
		switch {
		case m.steps[m.at].Commit:
			m.runs(e.Ended) // whatever was requested meanwhile
		case m.stopping:
			m.rollBack()
		default:
			m.next()
		}
	case Committed:
		m.splitRestore(e.Ended)
		m.runs(e.Ended)
	case Running:
		m.finish()
	case Undoing:
		m.undoEnded(e.Step, "")
	case Waiting, InDoubt, Done:
	}
}

// next goes on after a step: with the next step at once, unless the source has to ask for it.
func (m targetSide) next() {
	answer := m.steps[m.at].Answer
	m.at++
	next := m.steps[m.at]
	m.rec.Final = next.Commit // the previous step has received the final marker
	if answer != "" {         // the source goes on while this side writes its journal
		m.emit(Send{Message{Kind: answer, Spans: slices.Clone(m.rec.Spans)}})
	}
	if next.Ask == "" {
		m.do(m.at)
	}
}

// failed carries on after the end of a task that failed.
func (m targetSide) failed(e StepFailed, reason string) {
	switch m.rec.State {
	case Forward, Committed:
		switch {
		case e.Step == StepCheck:
			m.note(reason) // Tick tries again
		case m.rec.State == Committed:
			m.blame(reason, e.Problems)
			m.checkArrived()
		default:
			m.blame(reason, e.Problems)
			m.rollBack()
		}
	case Running:
		m.note(reason)
	case Undoing:
		m.undoEnded(e.Step, reason)
	case Waiting, InDoubt, Done:
	}
}

// ready decides whether the container may be resumed here. The commit is the engine's own record, which the
// engine makes durable before anything runs. An entry in this journal would say no more than the step that
// had begun does: that the engine has to be asked.
func (m targetSide) ready(e Ready) error {
	if m.rec.State != Forward || m.stopping || !m.steps[m.at].Commit || m.busy != m.steps[m.at].Name {
		m.emit(Deny{Step: m.steps[m.commitIndex()].Name})
		return m.unexpected(e)
	}
	m.rec.State = Committed
	m.readyAt = e.At
	m.emit(Proceed{})
	m.journal()
	return nil
}

// checkArrived asks the engine, because only the engine can know.
func (m targetSide) checkArrived() {
	m.unsure = true
	m.busy = StepCheck
	m.emit(CheckArrived{})
}

func (m targetSide) arrived(e Arrived) error {
	if m.busy != StepCheck || e.Outcome != Ran && e.Outcome != NeverRan {
		return m.unexpected(e)
	}
	m.busy = ""
	if e.Outcome == Ran {
		m.runs(e.At)
		return nil
	}
	m.blame("the restore did not end", nil)
	m.rollBack()
	return nil
}

// runs: the container runs here. The source is told first, because packets wait for it; the fact that the
// container runs is durable already.
func (m targetSide) runs(at time.Time) {
	m.stopping, m.unsure = false, false
	m.forgive()
	m.rec.Resumed = at
	m.rec.Decision = Ran
	m.rec.State = Running
	if m.rec.Overruled {
		m.fence()
		return
	}
	m.at = m.commitIndex() + 1
	m.tellRunning()
	m.journal()
}

// splitRestore shows in the report which part of the restore the record and the resume took.
func (m targetSide) splitRestore(at time.Time) {
	n := len(m.rec.Spans)
	if n == 0 || m.readyAt.IsZero() || m.readyAt.Before(m.rec.Spans[n-1].Start) || at.Before(m.readyAt) {
		return
	}
	m.rec.Spans[n-1].End = m.readyAt
	m.rec.Spans = append(m.rec.Spans, Span{Phase: "resume", Start: m.readyAt, End: at})
}

// givesUp handles a failure from outside.
func (m targetSide) givesUp(reason string) {
	if m.unsure || m.rec.State != Waiting && m.rec.State != Forward {
		return
	}
	m.blame(reason, nil)
	m.halt()
}

func (m targetSide) ticks() {
	switch {
	case m.busy != "":
	case m.unsure:
		m.checkArrived()
	case m.rec.State == Undoing:
		m.undo()
	case m.rec.State == Running:
		finalise := m.commitIndex() + 1
		if slices.Contains(m.rec.Begun, m.steps[finalise].Name) {
			m.do(finalise)
		} else {
			m.at = finalise
			m.tellRunning()
		}
	}
}

// hears handles a message of the source.
func (m targetSide) hears(msg Message) error {
	switch msg.Kind {
	case KindAbort:
		m.givesUp(fmt.Sprintf("%s gave up: %s", m.rec.Spec.Source, msg.Error))
		m.tellOutcome()
		return nil
	case KindOverruled:
		return m.overruled("an operator decided that it runs at the source")
	}
	waits := m.busy == "" && !m.unsure && slices.Contains([]State{Waiting, Forward, Running}, m.rec.State)
	if s := m.steps[m.at]; waits && s.Ask != "" && s.Ask == msg.Kind {
		if m.rec.State == Waiting {
			m.rec.State = Forward
		}
		m.do(m.at)
		return nil
	}
	if m.neverRan() {
		m.tellNeverRan()
		return nil
	}
	return fmt.Errorf("%w: message %s while %s", ErrUnexpected, bounded(string(msg.Kind), maxName),
		m.rec.State)
}

// asked answers a source in doubt. Such a source will send nothing more: data that has not arrived never
// will.
func (m targetSide) asked(e Asked) {
	if e.Abort || !m.rec.Final {
		m.givesUp(fmt.Sprintf("ended at the request of %s", m.rec.Spec.Source))
	}
	switch {
	case m.neverRan():
		m.emit(Answer{m.neverRanMessage()})
	case m.rec.Decision == Ran && !m.rec.Overruled:
		m.emit(Answer{m.runningMessage()})
	default:
		m.emit(Answer{Message{Kind: KindPending}})
	}
}

// neverRan reports whether the target may state that the container does not run here and never will.
func (m targetSide) neverRan() bool { return m.rec.NeverRuns() }

func (m targetSide) neverRanMessage() Message {
	reason := m.rec.Error
	if reason == "" {
		reason = "this migration has ended"
	}
	return Message{
		Kind: KindNeverRan, Error: reason, Problems: slices.Clone(m.rec.Problems),
		Spans: slices.Clone(m.rec.Spans),
	}
}

func (m targetSide) runningMessage() Message {
	return Message{Kind: KindRunning, At: m.rec.Resumed, Spans: slices.Clone(m.rec.Spans)}
}

func (m targetSide) tellNeverRan() {
	if m.neverRan() {
		m.emit(Send{m.neverRanMessage()})
	}
}

func (m targetSide) tellRunning() { m.emit(Send{m.runningMessage()}) }

// tellOutcome tells the source an outcome that the source seems not to know.
func (m targetSide) tellOutcome() {
	if m.rec.Decision == Ran && !m.rec.Overruled {
		m.tellRunning()
	} else if m.rec.State == Done {
		m.tellNeverRan()
	}
}

// overruled: an operator decided that the container runs at the source. A copy that runs here must stop.
func (m targetSide) overruled(why string) error {
	switch m.rec.State {
	case Waiting, Forward:
		if m.unsure {
			m.rec.Overruled = true
		}
		m.givesUp(why)
	case Committed:
		m.note(why)
		m.rec.Overruled = true
	case Running:
		if m.busy != "" {
			return fmt.Errorf("%w: the source has already given it away", ErrNotInDoubt)
		}
		m.note(why)
		m.fence()
	case Undoing, InDoubt:
	case Done:
		if m.rec.Result == Moved {
			return fmt.Errorf("%w: migration %s is over, the container was moved", ErrNotInDoubt,
				m.rec.Spec.ID)
		}
	}
	return nil
}

// fence kills and removes a container that runs here.
func (m targetSide) fence() {
	m.rec.Overruled = true
	m.at = m.commitIndex()
	m.blame("an operator decided that it runs at the source", nil)
	m.rollBack()
}

// resolves takes an operator's decision in place of the source's confirmation. Only the source can
// decide that the container runs there: this side cannot know whether the source has already given its copy
// away.
func (m targetSide) resolves(e Resolve) error {
	if err := m.resolvable(e); err != nil {
		return err
	}
	m.note("an operator decided that it runs at the target")
	m.rec.Resolved = true
	m.do(m.commitIndex() + 1)
	return nil
}

// resolvable refuses a decision about a migration that decides by itself, or that is decided at the
// source.
func (m targetSide) resolvable(e Resolve) error {
	if m.rec.State != Running || m.busy != "" {
		return fmt.Errorf("%w: migration %s is %s on this node", ErrNotInDoubt, m.rec.Spec.ID, m.rec.State)
	}
	if e.RunsAt != Target {
		return fmt.Errorf("%w: the container runs on this node; to take it back, resolve on %s or migrate it",
			ErrNotInDoubt, m.rec.Spec.Source)
	}
	return nil
}
