package embedded

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/criu/examine"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// Examine lists the obstacles to moving this running container.
func (ds *departures) Examine(ctx context.Context, id string) ([]engine.Problem, error) {
	return checkpoint.LookTwice(ctx, func() ([]engine.Problem, error) { return ds.examine(ctx, id) })
}

// examine checks once.
func (ds *departures) examine(ctx context.Context, id string) ([]engine.Problem, error) {
	ctr, err := ds.catalog.running(id)
	if err != nil {
		return nil, err
	}
	place := ds.paths.of(id)
	filling, err := checkpoint.ExamineMemory(place.memory())
	if err != nil {
		return nil, err
	}
	problems := append(examineMonitor(place), filling...)
	found, err := examineProcesses(ctx, place, ctr)
	if err != nil {
		return nil, fmt.Errorf("examine container %s: %w", ctr.Definition.Name, err)
	}
	return append(problems, found...), nil
}

func examineProcesses(ctx context.Context, place container, ctr engine.Container) ([]engine.Problem, error) {
	group, err := cgroup.Open(place.cgroup())
	if err != nil {
		return nil, err
	}
	pids, err := group.Procs()
	if err != nil {
		return nil, err
	}
	x, err := decodeExtra(ctr.Definition)
	if err != nil {
		return nil, err
	}
	spec, err := loadSpec(place)
	if err != nil {
		return nil, err
	}
	externals, err := criu.ExternalFor(spec, place.rootfs(), ctr.PID)
	if err != nil {
		return nil, err
	}
	problems, err := checkpoint.ExamineNetwork(ctx, checkpoint.Surroundings{
		PID: ctr.PID, PIDs: pids, Network: ctr.Definition.Network, Spec: spec, Alone: true,
	})
	if err != nil {
		return nil, err
	}
	subject := examine.Subject{PIDs: pids, Stdio: x.Stdio, Mounts: externals.MountKeys()}
	found, err := checkpoint.Examine(ctx, ctr.PID, subject)
	return append(problems, found...), err
}

// examineMonitor checks whether the container's output can move.
func examineMonitor(place container) []engine.Problem {
	var now liveState
	err := durable.Load(place.runtime(), &now)
	if err == nil && !now.Monitor.Alive() {
		err = errors.New("it has been killed")
	}
	if err == nil {
		return nil
	}
	return []engine.Problem{{
		What: "the container's monitor", Why: err.Error(), Remedy: "stop the container and start it again",
	}}
}
