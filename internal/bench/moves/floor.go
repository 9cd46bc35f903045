package moves

import (
	"context"
	"errors"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
)

// Floor is runc on one node: CRIU's time when nothing is sent. The others are compared with it.
type Floor struct {
	Peer
	container Bundle
}

// NewFloor returns the way for a container made after a model.
func NewFloor(b *testbed.Bed, w Workload, model engine.Container) *Floor {
	plug := Plug{Name: "floor", Number: 1}
	return &Floor{
		Peer:      Peer{Bed: b, Workload: w, Plug: plug, At: testbed.Nodes[0]},
		container: NewBundle(b, plug, model),
	}
}

// Name implements Way.
func (f *Floor) Name() string { return WayFloor }

// Start implements Way.
func (f *Floor) Start(ctx context.Context) error {
	if err := f.container.Make(ctx, testbed.Nodes[0], f.At); err != nil {
		return err
	}
	if err := f.container.Start(ctx, f.At); err != nil {
		return err
	}
	return f.connect(ctx, f.container.Pid)
}

// Move checkpoints and restores in place. The container is frozen before the time begins, because CRIU's
// own freezing waits in steps of 100 ms; so the images exclude cgroups, or it would be restored frozen.
func (f *Floor) Move(ctx context.Context) ([]results.Measurement, error) {
	if _, err := f.Bed.Exec(ctx, f.At, f.container.runc("pause", f.container.name)...); err != nil {
		return nil, err
	}
	cgroups := []string{"--manage-cgroups-mode", "ignore"}
	checkpoint, err := f.container.checkpoint(ctx, f.At, cgroups...)
	if err != nil {
		return nil, err
	}
	restore, err := f.container.restore(ctx, f.At, f.container.images(), cgroups...)
	if err != nil {
		return nil, err
	}
	return []results.Measurement{
		{results.Downtime, checkpoint + restore}, {results.Checkpoint, checkpoint},
		{results.Restore, restore},
	}, nil
}

// Stop implements Way.
func (f *Floor) Stop(ctx context.Context) error {
	return errors.Join(f.Disconnect(), f.container.Remove(ctx, f.At))
}
