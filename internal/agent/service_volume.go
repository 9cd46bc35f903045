package agent

import (
	"path/filepath"

	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/transfer/volumes"
)

// newProver finds out for this agent which volumes other nodes share.
func newProver(a *Agent) *proof.Prover {
	return proof.New(filepath.Join(a.config.StateDir, "proofs"), a.engines, a.peers, a.log)
}

// newVolumes decides what becomes of volumes of containers of this agent.
func newVolumes(a *Agent) *volumes.Mover {
	return volumes.New(volumesMachine(a), a.engines, a.proofs, a.log)
}

// volumesMachine is what volumes must not touch.
func volumesMachine(a *Agent) volumes.Machine {
	return volumes.Machine{Name: a.self.Name, StateDir: a.config.StateDir, RunDir: a.config.RunDir}
}
