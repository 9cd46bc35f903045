package agent

import (
	"context"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/departure"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/volumes"
)

// newDepartures finds out what can leave this node.
func newDepartures(a *Agent) *departure.Departures {
	return departure.New(departure.Config{
		Node: a.self.Name, PostCopy: a.config.PostCopy, Rules: a.rules(), Containers: a.containers,
		Connected: a.adopter.Connected, Peers: a.peers, Engines: a.engines, Admission: a.admission,
		Volumes: a.volumes, Layers: a.layers.Here, Forecaster: a.forecaster, Examiner: examining{a},
		Spill: examining{a},
	})
}

// examining finds what stands against a departure from this node.
type examining struct{ agent *Agent }

// ExamineInodes implements departure.Examiner.
func (e examining) ExamineInodes(ctx context.Context, of engine.Definition, chosen volumes.Chosen,
	settings migration.Settings) ([]engine.Problem, error) {
	return e.agent.examineInodes(ctx, of, chosen, settings)
}

// RestartRemedy implements departure.Examiner.
func (e examining) RestartRemedy(ctx context.Context, of engine.Definition,
	found []engine.Problem) []engine.Problem {
	return e.agent.restartRemedy(ctx, of, found)
}

// Bytes implements departure.Spill.
func (examining) Bytes(mode migration.Mode, settings migration.Settings, memoryBytes int64) int64 {
	return spillBytes(mode, settings, memoryBytes)
}

// Examine implements departure.Spill.
func (e examining) Examine(needed int64) []engine.Problem { return e.agent.examineSpill(needed) }

// NoKey implements departure.Spill.
func (examining) NoKey(node string, needed int64, reservation *api.Reservation) *migration.Problem {
	return keepsNoSpillKey(node, needed, reservation)
}
