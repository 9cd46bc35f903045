package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// past makes the target's side of a migration that has ended.
func past(t *testing.T, a *Agent, number int, result migration.Result) *target {
	t.Helper()
	move, err := a.moves.Find(ended(t, a, number, func(r *migration.Record) {
		r.Spec.Mode, r.Result = migration.PostCopy, result
		if result == migration.Moved {
			r.Decision = migration.Ran
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return move.Work().(*target)
}

// TestMissingPagesOfAnEndedMigration: the source's operator may have given away pages that the
// container here still waits for.
func TestMissingPagesOfAnEndedMigration(t *testing.T) {
	a := newTestAgent(t)
	if !past(t, a, 1, migration.Moved).mayMiss() {
		t.Error("nothing can be done for it")
	}
	if past(t, a, 2, migration.RolledBack).mayMiss() {
		t.Error("it can miss something that never came")
	}
}

// TestPushWaitsForWhatFills: pages are brought to nobody before there is somebody who takes them. After a
// restart of the agent nobody is waited for.
func TestPushWaitsForWhatFills(t *testing.T) {
	a := newTestAgent(t)
	one := past(t, a, 1, migration.RolledBack)
	if err := (arrived{one}).AwaitFilling(t.Context()); err != nil {
		t.Errorf("there is no arrival: %v", err)
	}
	one.arrival = struct{ engine.Arrival }{}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errInterrupted)
	if err := (arrived{one}).AwaitFilling(ctx); !errors.Is(err, errInterrupted) {
		t.Errorf("it does not wait: %v", err)
	}
	close(one.fills)
	if err := (arrived{one}).AwaitFilling(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHasRun: an arrival is known to have run when that is the decision.
func TestHasRun(t *testing.T) {
	a := newTestAgent(t)
	if (arrived{past(t, a, 1, migration.RolledBack)}).HasRun() {
		t.Error("it has run at the source")
	}
	if !(arrived{past(t, a, 2, migration.Moved)}).HasRun() {
		t.Error("it has run here")
	}
}
