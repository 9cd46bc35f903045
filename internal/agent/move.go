package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/gc"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
)

// work is what one side of a migration does. Every undo bears that its step never began, and can be repeated.
type work interface {
	// do does a step of this side. For the restore the time is that of the resume; otherwise it is not used.
	do(ctx context.Context, step migration.StepName) (time.Time, error)
	undo(ctx context.Context, step migration.StepName) error
	// send hands a message to the session, without waiting.
	send(message migration.Message)
	// ask asks the target for the outcome; source only.
	ask(ctx context.Context, abort bool) (migration.Message, error)
	// unsent keeps the final marker here for good, unless it has left, and tells whether it did; source only.
	unsent() bool
	// check finds out what became of the arrival; target only.
	check(ctx context.Context) (engine.Outcome, time.Time, error)
	// ended is called once, when the migration has ended on this node.
	ended(result migration.Finish)
	// fresh is the same work as after a restart of the agent: it holds nothing.
	fresh() work
}

// tickEvery is the pace at which what has to be repeated is repeated: asking in doubt, an undo that failed.
const tickEvery = 500 * time.Millisecond

// unknownEvery is the pace at which a target is asked again that cannot know the outcome: it asks
// its engine each time.
const unknownEvery = 5 * time.Second

// move is one migration on this node. It feeds events to the state machine and executes what comes
// out, in order; only steps and undos go on beside it. It decides nothing.
type move struct {
	agent   *Agent
	journal *journal.Journal
	tracker *progress.Tracker
	since   time.Time // by this node's clock; the time of the beginning is what the source says

	mu      sync.Mutex // held while an event is processed, so that actions are executed in order
	machine *migration.Machine
	life    int // counts the machines of this migration in this process
	doing   atomic.Pointer[work]
	running map[migration.StepName]*runningStep
	answer  *migration.Message // of the event being processed
	asking  bool               // the outcome is being asked for
	unknown time.Time          // when the target last said that it cannot know the outcome
	alarm   string             // logged last
	halted  bool               // the journal could not be written; see restartFromJournal

	gcPutOff bool // garbage collections are put off for this migration

	policy  sync.Mutex // held while the container that it brought is given a policy of copies
	failure string     // logged last
	over    bool
	done    chan struct{} // closed when the migration has ended on this node
	final   chan bool     // EmitFinal or Deny
	proceed chan bool     // Proceed or Deny
}

type runningStep struct {
	cancel context.CancelCauseFunc
	ended  chan struct{}
}

var (
	errInterrupted = errors.New("interrupted, because the migration is being undone")
	errHalted      = errors.New("the journal of this migration cannot be written; it is tried again")
)

func newMove(agent *Agent, journal *journal.Journal, machine *migration.Machine) *move {
	return &move{
		agent: agent, journal: journal, machine: machine,
		tracker: progress.NewTracker(machine.Record().Spec), since: time.Now(),
		running: map[migration.StepName]*runningStep{}, done: make(chan struct{}),
		final: make(chan bool, 1), proceed: make(chan bool, 1),
	}
}

// work is what this side does. It changes when the migration has ended.
func (m *move) work() work { return *m.doing.Load() }

func (m *move) take(w work) { m.doing.Store(&w) }

// step processes one event, and returns the answer if it was a question. The error is for the user,
// if the event came from one; late and doubled events are nothing to tell of.
func (m *move) step(event migration.Event) (*migration.Message, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.halted {
		return nil, errHalted
	}
	m.answer = nil
	actions, err := m.machine.Step(event)
	m.execute(actions)
	m.raise(m.machine.Alarm())
	return m.answer, err
}

// raise tells of an alarm once, not at each time that the target is asked.
func (m *move) raise(alarm string) {
	if alarm != "" && alarm != m.alarm {
		m.agent.log.Error("only an operator can tell where a container runs", "migration", m.tracker.Spec.ID,
			"container", m.tracker.Spec.Name, "alarm", alarm)
	}
	m.alarm = alarm
}

// tell processes an event that nobody waits for.
func (m *move) tell(event migration.Event) {
	if _, err := m.step(event); err != nil {
		m.agent.log.Debug("event ignored", "migration", m.tracker.Spec.ID, "reason", err)
	}
}

// describe has a definition journalled from now on that says more than the first one.
func (m *move) describe(definition engine.Definition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journal.Definition = definition
}

// record is the machine's state as it is now.
func (m *move) record() migration.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.Record()
}

// neverRuns reports whether this node has told the source, or may, that the container never runs here.
func (m *move) neverRuns() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.halted && m.machine.Record().NeverRuns()
}

// begin executes the first actions: those of Start, or those that Resume returned after a crash.
func (m *move) begin(actions []migration.Action) {
	func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.execute(actions)
	}()
	go m.guarded(m.tick)()
}

// tick repeats what must be repeated until the migration has ended on this node.
func (m *move) tick() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-m.agent.ctx.Done():
			return
		case <-ticker.C:
			m.guarded(func() { m.tell(migration.Tick{}) })() // a panic must not end the ticks
		}
	}
}

// execute carries out what the machine has decided. If it cannot, or panics, the machine has got
// ahead of what was done: the migration goes on from its journal.
func (m *move) execute(actions []migration.Action) {
	err := guard.Do(func() error { return m.executeAll(actions) })
	if err != nil {
		m.agent.logPanic(err)
		m.restartFromJournal(err)
	}
}

func (m *move) executeAll(actions []migration.Action) error {
	for _, action := range actions {
		if journal, ok := action.(migration.Journal); ok {
			if err := m.journal.Write(journal.Record); err != nil {
				return fmt.Errorf("journal cannot be written: %w", err)
			}
			continue
		}
		m.executeOne(action)
	}
	return nil
}

func (m *move) executeOne(action migration.Action) {
	switch action := action.(type) {
	case migration.Do:
		m.start(action.Step, m.perform)
	case migration.Undo:
		m.start(action.Step, m.performUndo)
	case migration.Interrupt:
		if step, ok := m.running[action.Step]; ok {
			step.cancel(interruption(m.machine.Record().Error))
		}
	case migration.EmitFinal:
		answer(m.final, true)
	case migration.Proceed:
		answer(m.proceed, true)
	case migration.Deny:
		m.deny(action.Step)
	case migration.Send:
		m.work().send(action.Message)
	case migration.AskOutcome:
		if !m.asking && time.Since(m.unknown) > unknownEvery { // a tick asks again
			m.asking = true
			go m.guarded(func() { m.ask(action.Abort) })()
		}
	case migration.Answer:
		m.answer = &action.Message
	case migration.CheckArrived:
		go m.guarded(m.check)()
	case migration.Finish:
		m.finish(action)
	}
}

// interruption is why a step is interrupted, in words that the peer may be told.
func interruption(reason string) error {
	if reason != "" {
		return fmt.Errorf("%w: %s", errInterrupted, reason)
	}
	return errInterrupted
}

func (m *move) deny(step migration.StepName) {
	waiting := m.proceed
	if step == migration.StepSend {
		waiting = m.final
	}
	answer(waiting, false)
}

// answer gives an answer to a step that waits for one, or will. An old one that nobody took is replaced.
func answer(waiting chan bool, yes bool) {
	select {
	case <-waiting:
	default:
	}
	waiting <- yes
}

// start runs a step or an undo beside the machine; its end comes back as an event.
func (m *move) start(name migration.StepName,
	body func(context.Context, migration.StepName) migration.Event) {
	ctx, cancel := context.WithCancelCause(m.agent.ctx)
	step := &runningStep{cancel: cancel, ended: make(chan struct{})}
	m.running[name] = step
	life := m.life
	m.tracker.Begin(name)
	go m.guarded(func() {
		event := m.contained(ctx, name, body)
		cancel(nil)
		close(step.ended)
		if m.agent.ctx.Err() != nil {
			return // The agent is being stopped: the journal says where to go on.
		}
		m.endStep(life, event)
	})()
}

// contained makes a panic of a step or undo its failure.
func (m *move) contained(ctx context.Context, name migration.StepName,
	body func(context.Context, migration.StepName) migration.Event) (event migration.Event) {
	began := time.Now()
	err := guard.Do(func() error {
		event = body(ctx, name)
		return nil
	})
	if err != nil {
		return m.endOf(ctx, name, began, time.Now(), err)
	}
	return event
}

// endStep hands the end of a step to the machine that began it, not to one that was made from the
// journal since.
func (m *move) endStep(life int, event migration.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if life != m.life {
		return
	}
	actions, err := m.machine.Step(event)
	if err != nil {
		m.agent.log.Debug("end of a step ignored", "migration", m.tracker.Spec.ID, "reason", err)
	}
	m.execute(actions)
}

func (m *move) perform(ctx context.Context, name migration.StepName) migration.Event {
	began := time.Now()
	err := m.fault(ctx, string(name), "before")
	var ended time.Time
	if err == nil {
		ended, err = m.work().do(ctx, name)
	}
	if err == nil {
		err = m.fault(ctx, string(name), "after")
	}
	if ended.IsZero() {
		ended = time.Now()
	}
	return m.endOf(ctx, name, began, ended, err)
}

func (m *move) performUndo(ctx context.Context, name migration.StepName) migration.Event {
	began := time.Now()
	err := m.fault(ctx, string(name), "before")
	if err == nil {
		err = m.work().undo(ctx, name)
	}
	return m.endOf(ctx, name, began, time.Now(), err)
}

func (m *move) endOf(ctx context.Context, name migration.StepName, began, ended time.Time,
	err error) migration.Event {
	if err == nil {
		m.agent.log.Debug("step done", "migration", m.tracker.Spec.ID, "step", name, "seconds",
			ended.Sub(began).Seconds())
		return migration.StepDone{Step: name, Began: began, Ended: ended}
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	m.logFailure(name, err)
	m.tracker.Failed(name, err.Error())
	failed := migration.StepFailed{Step: name, Error: err.Error(), Began: began, Ended: ended}
	failed.Unsent = name == migration.StepSend && m.work().unsent()
	var refused *migration.Refusal
	if errors.As(err, &refused) {
		failed.Problems = refused.Problems
	}
	return failed
}

// logFailure tells of a failure once, not at each time it comes back.
func (m *move) logFailure(name migration.StepName, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	level := slog.LevelInfo
	if failure := string(name) + err.Error(); failure == m.failure {
		level = slog.LevelDebug
	} else {
		m.failure = failure
	}
	m.agent.log.Log(m.agent.ctx, level, "step failed", "migration", m.tracker.Spec.ID, "step", name, "error",
		err)
	m.agent.logPanic(err)
}

func (m *move) ask(abort bool) {
	var message migration.Message
	err := guard.Do(func() (err error) {
		message, err = m.work().ask(m.agent.ctx, abort)
		return err
	})
	m.mu.Lock()
	m.asking = false
	if err == nil && message.Kind == migration.KindUnknown {
		m.unknown = time.Now()
	}
	m.mu.Unlock()
	if err != nil {
		m.agent.log.Debug("outcome unknown", "migration", m.tracker.Spec.ID, "error", err)
		m.agent.logPanic(err)
		return // The machine asks again at a later tick.
	}
	m.tell(migration.Received{Message: message})
}

func (m *move) check() {
	var outcome engine.Outcome
	var at time.Time
	err := guard.Do(func() (err error) {
		outcome, at, err = m.work().check(m.agent.ctx)
		return err
	})
	if err != nil {
		m.agent.logPanic(err)
		m.tell(migration.StepFailed{Step: migration.StepCheck, Error: err.Error()})
		return
	}
	m.tell(migration.Arrived{Outcome: migration.Outcome(outcome), At: at})
}

// mayEmitFinal asks the machine whether the final marker may leave, and journals that it may have.
func (m *move) mayEmitFinal(ctx context.Context) error {
	m.tell(migration.FinalMarker{})
	return permission(ctx, m.final)
}

// mayResume asks the machine whether the processes may be resumed. It does not wait for the
// journal, in which they may be already: see migration's ready.
func (m *move) mayResume(ctx context.Context) error {
	at := time.Now()
	go m.guarded(func() { m.tell(migration.Ready{At: at}) })()
	return permission(ctx, m.proceed)
}

func permission(ctx context.Context, answer <-chan bool) error {
	select {
	case yes := <-answer:
		if !yes {
			return errInterrupted
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lingering is how long after the end of a migration its last connections and callers may hold on to
// its resources. Then the memory goes back: containers need it more.
const lingering = time.Second

func (m *move) finish(result migration.Finish) {
	if m.over {
		return
	}
	m.over = true
	done := sync.OnceFunc(func() { close(m.done) })
	defer done() // whatever goes wrong: the container is not on its way any more
	m.work().ended(result)
	m.agent.lists.Changed(m.agent.engines.EngineFor(m.journal.Definition))
	done()
	m.agent.keeper.Look()
	m.take(m.work().fresh()) // the migration is remembered for long, and what it was done with is large
	time.AfterFunc(lingering, m.resumeGC)
}

// putOffGC keeps the freeze, which comes soon, free of garbage collections: see package gc.
func (m *move) putOffGC() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over && !m.gcPutOff {
		m.gcPutOff = true
		gc.Process.PutOff()
	}
}

// resumeGC lets garbage be collected as usual, some time after the end of the migration.
func (m *move) resumeGC() {
	m.mu.Lock()
	putOff := m.gcPutOff
	m.gcPutOff = false
	m.mu.Unlock()
	if putOff {
		gc.Process.GoOn()
	}
	gc.Process.GiveBack()
}

// remember makes this a migration that has ended already.
func (m *move) remember() {
	m.over = true
	close(m.done)
}

// ended reports whether the migration has ended on this node.
func (m *move) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// limit ends the migration if it takes too long.
func (m *move) limit(after time.Duration) {
	go m.guarded(func() {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-timer.C:
			m.tell(migration.Timeout{Reason: fmt.Sprintf("more than %s", after)})
		case <-m.done:
		case <-m.agent.ctx.Done():
		}
	})()
}

func (m *move) progress(at time.Time) migration.Progress { return m.tracker.Progress(m.record(), at) }

func (m *move) report() migration.Report { return m.tracker.Report(m.record(), m.ended()) }
