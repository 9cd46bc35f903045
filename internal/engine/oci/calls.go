package oci

import (
	"path/filepath"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// passedPath is where the system calls are noted that the filters of a container let through that has come
// here, as long as it is here: its processes keep their filters, while the specification that this node's
// engine made has another one.
func (e *Engine) passedPath(id string) string {
	return filepath.Join(e.config.StateDir, "engines", e.Name()+"-calls", id)
}

// passed lists the system calls for Definition.Passed. It is advice, so what cannot be read is not known.
func (e *Engine) passed(engineID string, ctr engine.Container, process Process) []string {
	id := ctr.Definition.ID
	if durable.Exists(e.remembered(id)) && e.restored(engineID) {
		var noted []string
		if err := durable.Load(e.passedPath(id), &noted); err != nil {
			return nil // it came to an agent that noted nothing
		}
		return checkpoint.KnownCalls(noted)
	}
	spec, err := process.spec()
	if err != nil {
		return nil // what needs it says so
	}
	return checkpoint.PassedCalls(ctr.PID, spec.Linux.Seccomp)
}

// restored reports whether a container still has the processes with which it came: its engine has not started
// others, for which it would have deleted those.
func (e *Engine) restored(engineID string) bool {
	dir, err := e.restoreDir(engineID)
	return err == nil && durable.Exists(dir.Path())
}

// agree refuses a container that its engine has just started, and whose images would be refused: its
// processes may make system calls that the engine's specification forbids. Engines say only by that
// specification which these are.
func (a *arrival) agree() error {
	spec, err := a.restoreDir.Spec()
	if err != nil {
		return err
	}
	return checkpoint.AgreeCalls(a.title, spec, a.definition.Passed)
}
