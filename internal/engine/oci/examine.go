package oci

import (
	"context"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/criu/examine"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// Examine lists the obstacles to moving this running container.
func (ds *departures) Examine(ctx context.Context, id string) ([]engine.Problem, error) {
	return checkpoint.LookTwice(ctx, func() ([]engine.Problem, error) { return ds.examine(ctx, id) })
}

func (ds *departures) examine(ctx context.Context, id string) ([]engine.Problem, error) {
	a, err := ds.look(ctx, id)
	if err != nil {
		return nil, err
	}
	problems := ds.adapter.Obstacles(ctx, a.found)
	if a.found.Paused {
		problems = append(problems, engine.Problem{
			What: "container " + a.found.name(), Why: "it is paused",
			Remedy: ds.adapter.Name() + " unpause " + a.found.name(),
		})
	}
	root, err := ds.adapter.Root(a.found)
	if err != nil {
		return nil, err
	}
	dir, err := ds.lookup.restoreDir(a.found.ID)
	if err != nil {
		return nil, err
	}
	filling, err := checkpoint.ExamineMemory(dir.Memory())
	if err != nil {
		return nil, err
	}
	pids, err := a.group.Procs()
	if err != nil {
		return nil, err
	}
	around, err := surroundings(a.found, pids)
	if err != nil {
		return nil, err
	}
	made, err := checkpoint.ExamineNetwork(ctx, checkpoint.Surroundings{
		PID: a.found.Container.PID, PIDs: pids, Network: a.found.Container.Definition.Network, Spec: a.spec,
	})
	if err != nil {
		return nil, err
	}
	problems = slices.Concat(problems, around, made)
	externals, err := a.externals(root.Target)
	if err != nil {
		return nil, err
	}
	subject := examine.Subject{PIDs: pids, Stdio: a.stdio, Mounts: externals.MountKeys()}
	found, err := checkpoint.Examine(ctx, a.found.Container.PID, subject)
	if err != nil {
		return nil, fmt.Errorf("examine container %s: %w", a.found.name(), err)
	}
	return append(append(problems, filling...), found...), nil
}

// surroundings lists a container's connections with its node and with other containers there.
func surroundings(found Container, pids []int) ([]engine.Problem, error) {
	hosts, err := hostConnections(found.Container.PID, pids)
	if err != nil {
		return nil, err
	}
	neighbours, err := neighbourConnections(found.Container.Definition.Network, pids)
	if err != nil {
		return nil, err
	}
	sharing, err := guests(found.Container.PID, pids)
	return slices.Concat(hosts, neighbours, sharing), err
}
