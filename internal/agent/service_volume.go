package agent

import (
	"path/filepath"

	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/transfer/volumes"
)

// newProver finds out for this agent which volumes other nodes share.
func (a *Agent) newProver() *proof.Prover {
	return proof.New(filepath.Join(a.config.StateDir, "proofs"), a.engines, a.peers, a.log)
}

// newVolumes decides what becomes of volumes of containers of this agent.
func (a *Agent) newVolumes() *volumes.Mover {
	return volumes.New(a.volumesMachine(), a.engines, a.proofs, a.log)
}

// volumesMachine is what volumes must not touch.
func (a *Agent) volumesMachine() volumes.Machine {
	return volumes.Machine{Name: a.self.Name, StateDir: a.config.StateDir, RunDir: a.config.RunDir}
}
