package migration

import (
	"fmt"
	"slices"
	"time"
)

// sourceSide is the machine with the rules of the source: how each event moves the migration there.
type sourceSide struct{ *Machine }

// resume carries on after a crash of the source's agent.
func (m sourceSide) resume() {
	switch m.rec.State {
	case Waiting, Forward:
		m.blame(fmt.Sprintf("the agent of %s was restarted", m.rec.Spec.Source), nil)
		if m.rec.Final {
			m.doubt()
		} else {
			m.rollBack()
		}
	case InDoubt:
		m.emit(AskOutcome{Abort: m.rec.Abort})
	case Undoing:
		m.undo()
	case Committed:
		m.at = m.commitIndex()
		m.carryOn()
	case Done:
		if m.rec.Result == Moved {
			m.emit(Send{Message{Kind: KindConfirm}})
		}
		m.emitFinish()
	}
}

// step handles the events other than the end of a step.
func (m sourceSide) step(event Event) error {
	switch e := event.(type) {
	case Start:
		if m.rec.State != Waiting {
			return m.unexpected(e)
		}
		m.rec.State = Forward
		m.begin(0)
	case FinalMarker:
		return m.finalMarker(e)
	case Received:
		return m.hears(e.Message)
	case PeerLost:
		m.givesUp(fmt.Sprintf("the connection to %s is lost: %s", m.rec.Spec.Target, e.Error), false)
	case PeerBack:
		if m.rec.State == InDoubt {
			m.emit(AskOutcome{Abort: m.rec.Abort})
		}
	case Timeout:
		m.givesUp("it took too long: "+e.Reason, true)
	case Cancel:
		if m.rec.State == Committed || m.rec.State == Done {
			return fmt.Errorf("%w: %s was handed over to %s", ErrTooLate, m.rec.Spec.Name, m.rec.Spec.Target)
		}
		m.givesUp("cancelled: "+e.Reason, true)
	case Tick:
		m.ticks()
	case Resolve:
		return m.resolves(e)
	default:
		return m.unexpected(event)
	}
	return nil
}

// begin goes on with step i: the machine does the step, asks for it, or waits for it.
func (m sourceSide) begin(i int) {
	for ; i < len(m.steps); i++ {
		s := m.steps[i]
		if s.At == Source {
			m.do(i)
			return
		}
		m.at = i
		done := s.Answer != "" && m.heard == s.Name
		if m.mark(i) && !done { // the journal entry of the next step says that this step is done
			m.journal()
		}
		if s.Ask != "" {
			m.emit(Send{Message{Kind: s.Ask}})
		}
		if s.Answer != "" && !done {
			return
		}
	}
	m.finish()
}

// carryOn begins the step after the current one, once the container is known to run at the target.
func (m sourceSide) carryOn() {
	if m.busy == "" {
		m.begin(m.at + 1)
	}
}

// did carries on after the end of a task that succeeded.
func (m sourceSide) did(e StepDone) {
	switch m.rec.State {
	case Forward:
		if m.stopping {
			m.rollBack()
		} else {
			m.begin(m.at + 1)
		}
	case Undoing:
		m.undoEnded(e.Step, "")
	case Committed:
		m.cut = m.cut && e.Step != StepPush
		m.carryOn()
	case Waiting, InDoubt, Running, Done:
		// The send ended while in doubt: the target's answer decides, not this side.
	}
}

// failed carries on after the end of a task that failed.
func (m sourceSide) failed(e StepFailed, reason string) {
	step, problems := e.Step, e.Problems
	if e.Unsent && m.rec.Final && m.rec.State != Undoing {
		m.blame(reason, problems)
		m.keep()
		return
	}
	switch m.rec.State {
	case Forward:
		m.blame(reason, problems)
		if m.rec.Final {
			m.doubt()
		} else {
			m.rollBack()
		}
	case Undoing:
		m.undoEnded(step, reason)
	case Committed:
		if m.index(step) < m.commitIndex() {
			m.carryOn() // a send that no longer matters has ended
			return
		}
		m.note(reason)
		// no command waits for the error any more: an operator finds here what to do
		for _, p := range problems {
			m.note(p.Remedy)
		}
		m.withheld = (step == StepDestroy || step == StepPush) && len(problems) > 0
		m.cut = step == StepPush
		m.at-- // Tick tries again
	case Waiting, InDoubt, Running, Done:
	}
}

// keep lets the container go on here: the final marker never left, so the target cannot run the container,
// whatever an operator has decided. The record is durable first: a source that runs again must not be in
// doubt after a crash.
func (m sourceSide) keep() {
	m.stopping, m.withheld = false, false
	m.rec.State, m.rec.Alarm, m.rec.Decision, m.rec.Resolved = Undoing, "", "", false
	send := slices.IndexFunc(m.steps, func(s Step) bool { return s.Final })
	m.rec.Begun = slices.DeleteFunc(m.rec.Begun, func(s StepName) bool { return m.index(s) > send })
	m.journal()
	m.undo()
}

// finalMarker decides whether the final marker may leave. From then on the source may not roll back
// by itself.
func (m sourceSide) finalMarker(e FinalMarker) error {
	if m.rec.State != Forward || m.stopping || m.rec.Final || !m.steps[m.at].Final || m.busy == "" {
		m.emit(Deny{Step: StepSend})
		return m.unexpected(e)
	}
	m.rec.Final = true
	m.journal()
	m.emit(EmitFinal{})
	return nil
}

// givesUp handles a failure from outside; abort: the target should end the migration if it can.
func (m sourceSide) givesUp(reason string, abort bool) {
	switch m.rec.State {
	case Waiting, Forward:
		m.blame(reason, nil)
		m.rec.Abort = m.rec.Abort || abort
		if m.rec.Final {
			m.doubt()
		} else {
			m.halt()
		}
	case InDoubt:
		if abort && !m.rec.Abort {
			m.note(reason)
			m.rec.Abort = true
			m.emit(AskOutcome{Abort: true})
			m.journal()
		}
	case Undoing, Committed, Running, Done:
	}
}

// doubt: the final marker may have left, and the target's answer is not known. The journal already says so,
// so this does not wait for a write.
func (m sourceSide) doubt() {
	m.rec.State = InDoubt
	if m.busy != "" {
		m.stopping = true
		m.emit(Interrupt{Step: m.busy})
	}
	m.emit(AskOutcome{Abort: m.rec.Abort})
	m.journal()
}

func (m sourceSide) ticks() {
	switch {
	case m.rec.State == InDoubt:
		m.emit(AskOutcome{Abort: m.rec.Abort})
	case m.rec.State == Undoing && m.busy == "":
		m.undo()
	case m.rec.State == Committed && !m.withheld:
		m.carryOn()
	}
}

// hears handles a message of the target.
func (m sourceSide) hears(msg Message) error {
	if len(msg.Spans) > 0 && m.rec.Resumed.IsZero() {
		m.rec.PeerSpans = boundedSpans(msg.Spans) // only for the report
	}
	if m.doubted(msg) {
		m.alarm(msg)
		return nil
	}
	switch msg.Kind {
	case KindUnknown:
		return m.unexpected(msg)
	case KindRunning:
		return m.hearsRunning(msg)
	case KindNeverRan:
		return m.hearsNeverRan(msg)
	case KindPending:
		return nil
	}
	if step, is := m.early(msg.Kind); is {
		m.heard = step
		return nil
	}
	s := m.steps[m.at]
	if m.rec.State != Forward || s.At != Target || s.Answer != msg.Kind {
		return fmt.Errorf("%w: message %s while %s", ErrUnexpected, bounded(string(msg.Kind), maxName),
			m.rec.State)
	}
	if msg.Kind == KindReserved {
		m.rec.Incarnation = bounded(msg.Incarnation, maxName)
	}
	m.begin(m.at + 1)
	return nil
}

// early returns the step that the target has done while this side is still at an earlier step: the target's
// next step, if it begins by itself. The commit is not one of them: its answer is handled in any state.
func (m sourceSide) early(kind MessageKind) (StepName, bool) {
	if m.rec.State != Forward || m.steps[m.at].At != Source || m.stopping {
		return "", false
	}
	for _, s := range m.steps[m.at:] {
		if s.At == Target {
			return s.Name, s.Ask == "" && s.Answer != "" && s.Answer == kind && !s.Commit && s.Name != m.heard
		}
	}
	return "", false
}

// hearsRunning: the container runs at the target. This is the commit at the source.
func (m sourceSide) hearsRunning(msg Message) error {
	switch {
	case m.rec.State == InDoubt, m.rec.State == Forward && m.rec.Final:
		m.rec.Resumed = msg.At
		m.commit()
	case m.rec.Overruled:
		m.emit(Send{Message{Kind: KindOverruled}})
	case m.rec.State == Done && m.rec.Result == Moved:
		m.emit(Send{Message{Kind: KindConfirm}})
	case m.rec.State == Committed:
	default:
		return fmt.Errorf("%w: %s says that the container runs there, but this node never allowed it to",
			ErrUnexpected, m.rec.Spec.Target)
	}
	return nil
}

// commit begins to give the container away. The next step begins before it is in the journal, because
// packets wait for it: the step only sends them to the node where the container runs. A source that has
// lost this is in doubt, asks, and begins the step again.
func (m sourceSide) commit() {
	m.forgive()
	m.rec.Alarm = ""
	m.rec.State = Committed
	m.rec.Decision = Ran
	m.at = m.commitIndex()
	m.mark(m.at + 1)
	m.carryOn()
	m.journal()
}

// hearsNeverRan: the container does not run at the target and never will.
func (m sourceSide) hearsNeverRan(msg Message) error {
	reason := msg.Error
	if reason == "" {
		reason = "no reason given"
	}
	switch m.rec.State {
	case Forward, InDoubt:
		m.blameToo(fmt.Sprintf("%s: %s", m.rec.Spec.Target, reason), msg.Problems)
		m.rec.Decision = NeverRan
		if m.rec.Final {
			m.takeBack()
		} else {
			m.halt()
		}
	case Undoing:
		m.rec.Decision = NeverRan
	case Committed, Running:
		return fmt.Errorf("%w: %s says now that the container never ran there", ErrUnexpected,
			m.rec.Spec.Target)
	case Waiting, Done:
	}
	return nil
}

// takeBack rolls back after the final marker. The decision is durable first: a source that runs again must
// not be in doubt after a crash.
func (m sourceSide) takeBack() {
	m.rec.Alarm = ""
	m.rec.State = Undoing
	m.journal()
	if m.busy == "" {
		m.undo()
	} else if !m.stopping {
		m.stopping = true
		m.emit(Interrupt{Step: m.busy})
	}
}

// resolves takes an operator's decision in place of the target's answer, when the target does not
// know whether the data that arrived there is complete, or when the target cannot be reached and some of
// the container's memory is still here.
func (m sourceSide) resolves(e Resolve) error {
	if err := m.resolvable(e); err != nil {
		return err
	}
	if e.RunsAt == Source {
		m.note("an operator decided that it runs at the source")
		m.rec.Overruled = true
		m.rec.Decision, m.rec.Resumed, m.withheld, m.cut = NeverRan, time.Time{}, false, false
		m.takeBack()
		return nil
	}
	m.note("an operator decided that it runs at the target")
	m.giveAway()
	return nil
}

// resolvable refuses a decision about a migration that decides by itself.
func (m sourceSide) resolvable(e Resolve) error {
	switch {
	case e.RunsAt != Source && e.RunsAt != Target:
		return fmt.Errorf("%w: it runs at the source or at the target, not at %q", ErrNotInDoubt,
			bounded(string(e.RunsAt), maxName))
	case m.rec.State == InDoubt, m.withheld, m.cut:
		return nil
	case m.rec.State == Committed:
		return fmt.Errorf("%w: %s was handed over to %s, which does not count as lost. If it has "+
			"failed, this node notices within seconds: try again then",
			ErrNotInDoubt, m.rec.Spec.Name, m.rec.Spec.Target)
	}
	return fmt.Errorf("%w: migration %s is %s, not in doubt", ErrNotInDoubt, m.rec.Spec.ID, m.rec.State)
}

// giveAway goes on to the end without asking the target for anything.
func (m sourceSide) giveAway() {
	m.rec.Resolved, m.withheld, m.cut = true, false, false
	if m.rec.State != Committed {
		m.commit()
		return
	}
	m.journal()
	if m.busy != "" { // It ends and begins again, and then knows the decision.
		m.emit(Interrupt{Step: m.busy})
		return
	}
	m.carryOn()
}

// tellGiveUp tells the target that nothing will come, unless the target gave up itself. The message may get
// lost: a target that loses its source gives up by itself.
func (m sourceSide) tellGiveUp() {
	if m.told || m.rec.Decision == NeverRan && !m.rec.Overruled {
		return
	}
	m.told = true
	kind := KindAbort
	if m.rec.Overruled {
		kind = KindOverruled
	}
	m.emit(Send{Message{Kind: kind, Error: m.rec.Error}})
}
