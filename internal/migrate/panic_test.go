package migrate

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestPanicBesideAMigrationBreaksItOff: the error of the migration names the panic, and the log has
// its stack.
func TestPanicBesideAMigrationBreaksItOff(t *testing.T) {
	a := newNode(t)
	var log bytes.Buffer
	a.moves.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	m := startedMove(t, a, func(m *Move) Work { return waitingWork{idle{m}} })
	m.Guarded(func() { panic("on purpose") })()
	if record := m.Record(); !strings.Contains(record.Error, "on purpose") {
		t.Errorf("the migration has the error %q, want the panic", record.Error)
	}
	if !strings.Contains(log.String(), "TestPanicBesideAMigrationBreaksItOff") {
		t.Errorf("the log has no stack of the panic: %s", log.String())
	}
}

// waitingWork does no step before its agent ends.
type waitingWork struct{ idle }

func (w waitingWork) Do(ctx context.Context, _ migration.StepName) (time.Time, error) {
	<-w.move.all.ctx.Done()
	return time.Time{}, ctx.Err()
}

func (w waitingWork) Undo(ctx context.Context, step migration.StepName) error {
	_, err := w.Do(ctx, step)
	return err
}

// clumsyWork panics when it is to send its first message.
type clumsyWork struct {
	idle

	sent atomic.Int32
}

func (w *clumsyWork) Send(migration.Message) {
	if w.sent.Add(1) == 1 {
		panic("on purpose")
	}
}

func (w *clumsyWork) Fresh() Work { return w }

// TestPanicBetweenStepsGoesOnFromTheJournal: the machine has decided what was not done then, so it would wait
// for ever for the end of it.
func TestPanicBetweenStepsGoesOnFromTheJournal(t *testing.T) {
	a := newNode(t)
	m := startedMove(t, a, func(m *Move) Work { return &clumsyWork{idle: idle{m}} })
	<-m.done
	if record := m.Record(); record.State != migration.Done || !strings.Contains(record.Error, "agent") {
		t.Errorf("the migration is %+v, want that it was undone as after a crash of the agent", record)
	}
}

// startedMove makes a migration at its source that is in its first step.
func startedMove(t *testing.T, a *node, does func(*Move) Work) *Move {
	t.Helper()
	machine, err := migration.New(migration.Spec{
		ID: testMigration, Side: migration.Source, Container: strings.Repeat("c", 64), Name: "web",
		Source: "b", Target: "a", Mode: migration.Cold, Started: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	m := a.moves.New(engine.Definition{}, machine)
	m.Take(does(m))
	if err := a.moves.Add(m); err != nil {
		t.Fatal(err)
	}
	m.Happen(migration.Start{})
	return m
}
