package agent

import (
	"context"

	"github.com/godwit/godwit/internal/criu/relief"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// giveRoom gives room to connections of a container that has just been restored, for as long as one
// may need it.
func (a *Agent) giveRoom(definition engine.Definition) {
	relief.Give(a.ctx, relief.Container{
		ID: definition.ID, Log: a.log,
		Processes: func(ctx context.Context) ([]int, error) {
			return a.engines.EngineFor(definition).Processes(ctx, definition.ID)
		},
		Leaves: func() bool {
			m := a.moves.Of(definition.ID)
			return m != nil && m.Tracker.Spec.Side == migration.Source
		},
	})
}
