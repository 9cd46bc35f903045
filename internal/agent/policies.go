package agent

import (
	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
)

// rules are the policy of this node.
func (a *Agent) rules() admission.Rules {
	return admission.Rules{Node: a.self.Name, Policy: a.config.Policy}
}

// newAdmission decides for this agent which containers can come. The migrations are made after it.
func newAdmission(a *Agent) *admission.Admission {
	return admission.New(admission.Config{
		Rules: a.rules(), StateDir: a.config.StateDir, Engines: a.engines, Containers: a.lists,
		Leases: a.leases, Network: a.network, Images: a.images, Layers: a.layers, Kept: a.kept,
		Memory: admission.Memory{
			Available: kernel.MemoryAvailable, Reservations: a.reservations, Residuals: a.residuals,
			Staged: a.stagedCopies.Of,
		},
		Directories: volumesMachine(a),
		Waiting: func(definition engine.Definition) []migration.Problem {
			return a.moves.Unread().Examine(definition)
		},
		Platform: admission.ReadPlatform, Log: a.log,
	})
}
