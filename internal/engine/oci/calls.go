package oci

import (
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// passed lists the system calls for Definition.Passed. The list is advice, so it is nil if it cannot be read.
func (e *Engine) passed(engineID string, ctr engine.Container, process Process) []string {
	id := ctr.Definition.ID
	if durable.Exists(e.records.remembered(id)) && e.restored(engineID) {
		var noted []string
		if err := durable.Load(e.records.passedPath(id), &noted); err != nil {
			return nil // the container arrived at an older agent, which wrote no list
		}
		return checkpoint.KnownCalls(noted)
	}
	spec, err := process.spec()
	if err != nil {
		return nil // whoever needs the specification reports the error
	}
	return checkpoint.PassedCalls(ctr.PID, spec.Linux.Seccomp)
}

// restored reports whether a container still has the processes with which it arrived. The engine deletes them
// before it starts others.
func (e *Engine) restored(engineID string) bool {
	dir, err := e.lookup.restoreDir(engineID)
	return err == nil && durable.Exists(dir.Path())
}

// agree refuses a container that its engine has just started if its processes may make system calls that the
// engine's specification forbids: its images would be refused. Only the specification says which calls these
// are.
func (a *arrival) agree() error {
	spec, err := a.restoreDir.Spec()
	if err != nil {
		return err
	}
	return checkpoint.AgreeCalls(a.title, spec, a.definition.Passed)
}
