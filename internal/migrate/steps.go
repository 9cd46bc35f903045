package migrate

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
)

// tasks are a migration's steps, undos and questions, which go on beside its machine. Each comes back to the
// machine as an event.
type tasks struct{ *Move }

// start runs a step or an undo.
func (m tasks) start(name migration.StepName,
	body func(context.Context, migration.StepName) migration.Event) {
	ctx, cancel := context.WithCancelCause(m.all.ctx)
	step := &runningStep{cancel: cancel, ended: make(chan struct{})}
	m.running[name] = step
	life := m.life
	m.Tracker.Begin(name)
	go m.Guarded(func() {
		event := m.contained(ctx, name, body)
		cancel(nil)
		close(step.ended)
		if m.all.ctx.Err() != nil {
			return // The agent is being stopped: the journal says where to go on.
		}
		m.endStep(life, event)
	})()
}

// contained makes a panic of a step or undo its failure.
func (m tasks) contained(ctx context.Context, name migration.StepName,
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
func (m tasks) endStep(life int, event migration.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if life != m.life {
		return
	}
	actions, err := m.machine.Step(event)
	if err != nil {
		m.all.config.Log.Debug("end of a step ignored", "migration", m.Tracker.Spec.ID, "reason", err)
	}
	m.execute(actions)
}

func (m tasks) perform(ctx context.Context, name migration.StepName) migration.Event {
	began := time.Now()
	err := m.Fault(ctx, string(name), "before")
	var ended time.Time
	if err == nil {
		ended, err = m.Work().Do(ctx, name)
	}
	if err == nil {
		err = m.Fault(ctx, string(name), "after")
	}
	if ended.IsZero() {
		ended = time.Now()
	}
	return m.endOf(ctx, name, began, ended, err)
}

func (m tasks) performUndo(ctx context.Context, name migration.StepName) migration.Event {
	began := time.Now()
	err := m.Fault(ctx, string(name), "before")
	if err == nil {
		err = m.Work().Undo(ctx, name)
	}
	return m.endOf(ctx, name, began, time.Now(), err)
}

func (m tasks) endOf(ctx context.Context, name migration.StepName, began, ended time.Time,
	err error) migration.Event {
	if err == nil {
		m.all.config.Log.Debug("step done", "migration", m.Tracker.Spec.ID, "step", name, "seconds",
			ended.Sub(began).Seconds())
		return migration.StepDone{Step: name, Began: began, Ended: ended}
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	m.logFailure(name, err)
	m.Tracker.Failed(name, err.Error())
	failed := migration.StepFailed{Step: name, Error: err.Error(), Began: began, Ended: ended}
	failed.Unsent = name == migration.StepSend && m.Work().Unsent()
	var refused *migration.Refusal
	if errors.As(err, &refused) {
		failed.Problems = refused.Problems
	}
	return failed
}

// logFailure tells of a failure once, not at each time it comes back.
func (m tasks) logFailure(name migration.StepName, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	level := slog.LevelInfo
	if failure := string(name) + err.Error(); failure == m.logged.failure {
		level = slog.LevelDebug
	} else {
		m.logged.failure = failure
	}
	m.all.config.Log.Log(m.all.ctx, level, "step failed", "migration", m.Tracker.Spec.ID, "step", name,
		"error", err)
	guard.LogPanic(m.all.config.Log, err)
}

func (m tasks) ask(abort bool) {
	var message migration.Message
	err := guard.Do(func() (err error) {
		message, err = m.Work().Ask(m.all.ctx, abort)
		return err
	})
	m.mu.Lock()
	m.asking = false
	if err == nil && message.Kind == migration.KindUnknown {
		m.unknown = time.Now()
	}
	m.mu.Unlock()
	if err != nil {
		m.all.config.Log.Debug("outcome unknown", "migration", m.Tracker.Spec.ID, "error", err)
		guard.LogPanic(m.all.config.Log, err)
		return // The machine asks again at a later tick.
	}
	m.Happen(migration.Received{Message: message})
}

func (m tasks) check() {
	var outcome engine.Outcome
	var at time.Time
	err := guard.Do(func() (err error) {
		outcome, at, err = m.Work().Check(m.all.ctx)
		return err
	})
	if err != nil {
		guard.LogPanic(m.all.config.Log, err)
		m.Happen(migration.StepFailed{Step: migration.StepCheck, Error: err.Error()})
		return
	}
	m.Happen(migration.Arrived{Outcome: migration.Outcome(outcome), At: at})
}

// Fault makes happen what a test asked for at this point of the migration.
func (m *Move) Fault(ctx context.Context, step, when string) error {
	if m.all.config.Fault == nil {
		return nil
	}
	return m.all.config.Fault(ctx, m.Tracker.Spec.Side, step, when)
}

// Guarded is do for a goroutine of its own. A panic breaks the migration off, as the loss of the peer does:
// what the migration has done so far decides how it ends.
func (m *Move) Guarded(do func()) func() {
	return guard.Logged(m.all.config.Log, func() {
		err := guard.Do(func() error {
			do()
			return nil
		})
		if err != nil {
			guard.LogPanic(m.all.config.Log, err)
			m.Happen(migration.PeerLost{Error: err.Error()})
		}
	})
}
