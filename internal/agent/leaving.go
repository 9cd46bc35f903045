package agent

import (
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/departure"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/push"
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
	return push.SpillBytes(mode, settings, memoryBytes)
}

// Examine implements departure.Spill.
func (s spilling) Examine(needed int64) []engine.Problem {
	return push.ExamineRoom(s.agent.self.Name, s.agent.config.StateDir, needed)
}

// NoKey implements departure.Spill.
func (spilling) NoKey(node string, needed int64, reservation *api.Reservation) *migration.Problem {
	return push.KeepsNoKey(node, needed, reservation.GetKeepsSpillKey())
}
