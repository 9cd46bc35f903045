package migrate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
)

// tickEvery is the pace at which what has to be repeated is repeated: asking in doubt, an undo that failed.
const tickEvery = 500 * time.Millisecond

// unknownEvery is the pace at which a target is asked again that cannot know the outcome: it asks
// its engine each time.
const unknownEvery = 5 * time.Second

// Move is one migration on this node. It feeds events to the state machine and executes what comes
// out, in order; only steps and undos go on beside it. It decides nothing.
type Move struct {
	Tracker *progress.Tracker
	Journal *journal.Journal

	all   *Moves
	since time.Time // by this node's clock; the time of the beginning is what the source says

	mu      sync.Mutex // held while an event is processed, so that actions are executed in order
	machine *migration.Machine
	life    int // counts the machines of this migration in this process
	doing   atomic.Pointer[Work]
	running map[migration.StepName]*runningStep
	answer  *migration.Message // of the event being processed
	asking  bool               // the outcome is being asked for
	unknown time.Time          // when the target last said that it cannot know the outcome
	halted  bool               // the journal could not be written; see restarting

	gcPutOff bool // garbage collections are put off for this migration

	logged struct{ alarm, failure string } // last

	policy  sync.Mutex // held while the container that it brought is given a policy of copies
	over    bool
	done    chan struct{} // closed when the migration has ended on this node
	final   chan bool     // EmitFinal or Deny
	proceed chan bool     // Proceed or Deny
}

type runningStep struct {
	cancel context.CancelCauseFunc
	ended  chan struct{}
}

// ErrInterrupted is why a step is interrupted.
var ErrInterrupted = errors.New("interrupted, because the migration is being undone")

var errHalted = errors.New("the journal of this migration cannot be written; it is tried again")

// New makes a migration that is not known yet: see Moves.Add. It has no work yet, either.
func (m *Moves) New(definition engine.Definition, machine *migration.Machine) *Move {
	return m.newMove(m.newJournal(machine.Record().Spec.ID, definition), machine)
}

func (m *Moves) newMove(journal *journal.Journal, machine *migration.Machine) *Move {
	return &Move{
		Tracker: progress.NewTracker(machine.Record().Spec), Journal: journal,
		all: m, since: time.Now(), machine: machine,
		running: map[migration.StepName]*runningStep{}, done: make(chan struct{}),
		final: make(chan bool, 1), proceed: make(chan bool, 1),
	}
}

// Work is what this side does. It changes when the migration has ended.
func (m *Move) Work() Work { return *m.doing.Load() }

// Take makes w what this side does.
func (m *Move) Take(w Work) { m.doing.Store(&w) }

// Done is closed when the migration has ended on this node.
func (m *Move) Done() <-chan struct{} { return m.done }

// PolicyLock is held while the container that the migration brought is given a policy of copies.
func (m *Move) PolicyLock() *sync.Mutex { return &m.policy }

// Step processes one event, and returns the answer if it was a question. The error is for the user,
// if the event came from one; late and doubled events are nothing to tell of.
func (m *Move) Step(event migration.Event) (*migration.Message, error) {
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
func (m *Move) raise(alarm string) {
	if alarm != "" && alarm != m.logged.alarm {
		m.all.config.Log.Error("only an operator can tell where a container runs", "migration",
			m.Tracker.Spec.ID, "container", m.Tracker.Spec.Name, "alarm", alarm)
	}
	m.logged.alarm = alarm
}

// Happen processes an event that nobody waits for.
func (m *Move) Happen(event migration.Event) {
	if _, err := m.Step(event); err != nil {
		m.all.config.Log.Debug("event ignored", "migration", m.Tracker.Spec.ID, "reason", err)
	}
}

// Describe has a definition journalled from now on that says more than the first one.
func (m *Move) Describe(definition engine.Definition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Journal.Definition = definition
}

// Record is the machine's state as it is now.
func (m *Move) Record() migration.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machine.Record()
}

// RecordInside is Record for work that is called while an event is processed: in Send and Ended.
func (m *Move) RecordInside() migration.Record { return m.machine.Record() }

// NeverRuns reports whether this node has told the source, or may, that the container never runs here.
func (m *Move) NeverRuns() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.halted && m.machine.Record().NeverRuns()
}

// Begin executes the first actions: those of Start, or those that Resume returned after a crash.
func (m *Move) Begin(actions []migration.Action) {
	func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.execute(actions)
	}()
	go m.Guarded(m.tick)()
}

// tick repeats what must be repeated until the migration has ended on this node.
func (m *Move) tick() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-m.all.ctx.Done():
			return
		case <-ticker.C:
			m.Guarded(func() { m.Happen(migration.Tick{}) })() // a panic must not end the ticks
		}
	}
}

// execute carries out what the machine has decided. If it cannot, or panics, the machine has got
// ahead of what was done: the migration goes on from its journal.
func (m *Move) execute(actions []migration.Action) {
	err := guard.Do(func() error { return m.executeAll(actions) })
	if err != nil {
		guard.LogPanic(m.all.config.Log, err)
		restarting{m}.fromJournal(err)
	}
}

func (m *Move) executeAll(actions []migration.Action) error {
	for _, action := range actions {
		if journal, ok := action.(migration.Journal); ok {
			if err := m.Journal.Write(journal.Record); err != nil {
				return fmt.Errorf("journal cannot be written: %w", err)
			}
			continue
		}
		m.executeOne(action)
	}
	return nil
}

func (m *Move) executeOne(action migration.Action) {
	switch action := action.(type) {
	case migration.Do:
		tasks{m}.start(action.Step, tasks{m}.perform)
	case migration.Undo:
		tasks{m}.start(action.Step, tasks{m}.performUndo)
	case migration.Interrupt:
		if step, ok := m.running[action.Step]; ok {
			step.cancel(Interruption(m.machine.Record().Error))
		}
	case migration.EmitFinal:
		answer(m.final, true)
	case migration.Proceed:
		answer(m.proceed, true)
	case migration.Deny:
		m.deny(action.Step)
	case migration.Send:
		m.Work().Send(action.Message)
	case migration.AskOutcome:
		if !m.asking && time.Since(m.unknown) > unknownEvery { // a tick asks again
			m.asking = true
			go m.Guarded(func() { tasks{m}.ask(action.Abort) })()
		}
	case migration.Answer:
		m.answer = &action.Message
	case migration.CheckArrived:
		go m.Guarded(tasks{m}.check)()
	case migration.Finish:
		m.finish(action)
	}
}

// Interruption is why a step is interrupted, in words that the peer may be told.
func Interruption(reason string) error {
	if reason != "" {
		return fmt.Errorf("%w: %s", ErrInterrupted, reason)
	}
	return ErrInterrupted
}

func (m *Move) deny(step migration.StepName) {
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

// MayEmitFinal asks the machine whether the final marker may leave, and journals that it may have.
func (m *Move) MayEmitFinal(ctx context.Context) error {
	m.Happen(migration.FinalMarker{})
	return permission(ctx, m.final)
}

// MayResume asks the machine whether the processes may be resumed. It does not wait for the
// journal, in which they may be already: see migration's ready.
func (m *Move) MayResume(ctx context.Context) error {
	at := time.Now()
	go m.Guarded(func() { m.Happen(migration.Ready{At: at}) })()
	return permission(ctx, m.proceed)
}

func permission(ctx context.Context, answer <-chan bool) error {
	select {
	case yes := <-answer:
		if !yes {
			return ErrInterrupted
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
