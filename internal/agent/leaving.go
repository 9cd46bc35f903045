package agent

import (
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/departure"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// newDepartures finds out what can leave this node.
func newDepartures(a *Agent) *departure.Departures {
	return departure.New(departure.Config{
		Node: a.self.Name, PostCopy: a.config.PostCopy, Rules: a.rules(), Containers: a.containers,
		Connected: a.adopter.Connected, Peers: a.peers, Engines: a.engines, Admission: a.admission,
		Volumes: a.volumes, Layers: a.layers.Here, Forecaster: a.forecaster,
		ExamineInodes: a.examineInodes, Spill: spilling{a},
	})
}

// spilling is the spill of containers that leave this node.
type spilling struct{ agent *Agent }

// Bytes implements departure.Spill.
func (spilling) Bytes(mode migration.Mode, settings migration.Settings, memoryBytes int64) int64 {
	return spillBytes(mode, settings, memoryBytes)
}

// Examine implements departure.Spill.
func (s spilling) Examine(needed int64) []engine.Problem { return s.agent.examineSpill(needed) }

// NoKey implements departure.Spill.
func (spilling) NoKey(node string, needed int64, reservation *api.Reservation) *migration.Problem {
	return keepsNoSpillKey(node, needed, reservation)
}
