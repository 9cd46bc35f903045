package agent

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
)

// finish keeps the report of a migration.
func (a *Agent) finish(m *move, result migration.Finish) {
	var leaves []string
	if m.tracker.Spec.Side == migration.Source && result.Result == migration.Moved {
		leaves = a.departures.LeavesBehind(m.Journal.Definition)
	}
	m.Finish(result, leaves)
}

// move is a migration as the work of its side sees it.
type move struct {
	*migrate.Move
	tracker *progress.Tracker
	done    <-chan struct{}
}

func newMove(m *migrate.Move) *move { return &move{Move: m, tracker: m.Tracker, done: m.Done()} }

func (m *move) record() migration.Record               { return m.Record() }
func (m *move) tell(event migration.Event)             { m.Happen(event) }
func (m *move) describe(definition engine.Definition)  { m.Describe(definition) }
func (m *move) guarded(do func()) func()               { return m.Guarded(do) }
func (m *move) putOffGC()                              { m.PutOffGC() }
func (m *move) mayResume(ctx context.Context) error    { return m.MayResume(ctx) }
func (m *move) mayEmitFinal(ctx context.Context) error { return m.MayEmitFinal(ctx) }

func (m *move) fault(ctx context.Context, step, when string) error { return m.Fault(ctx, step, when) }

var errInterrupted = migrate.ErrInterrupted

func interruption(reason string) error { return migrate.Interruption(reason) }
