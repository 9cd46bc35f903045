package moves

import (
	"context"
	"errors"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
)

// TookOwn returns the measurements of an engine's own way.
func TookOwn(checkpoint, copied, restore, size float64) []results.Measurement {
	return []results.Measurement{
		{results.Downtime, checkpoint + copied + restore}, {results.Total, checkpoint + copied + restore},
		{results.Checkpoint, checkpoint}, {results.Copy, copied}, {results.Restore, restore},
		{results.Sent, size},
	}
}

// Rsync is the way of study B (Puliafito et al., Sensors 2019), cold: runc checkpoint, rsync without
// compression, runc restore. It is faster than in the study: images stay in memory, and nftables holds
// packets.
type Rsync struct {
	Peer
	container Bundle
}

// NewRsync returns the way for a container made after a model.
func NewRsync(b *testbed.Bed, w Workload, model engine.Container) *Rsync {
	plug := Plug{Name: "rsync", Number: 2}
	return &Rsync{
		Peer:      Peer{Bed: b, Workload: w, Plug: plug, At: testbed.Nodes[0]},
		container: NewBundle(b, plug, model),
	}
}

// Name implements Way.
func (r *Rsync) Name() string { return WayRsync }

// Start implements Way.
func (r *Rsync) Start(ctx context.Context) error {
	for _, node := range []string{testbed.Other(r.At), r.At} {
		if err := r.container.Make(ctx, testbed.Nodes[0], node); err != nil {
			return err
		}
		// on both, so that both have the devices that runc makes
		if err := r.container.Start(ctx, node); err != nil {
			return err
		}
	}
	if err := r.container.Kill(ctx, testbed.Other(r.At)); err != nil {
		return err
	}
	return r.connect(ctx, r.container.Pid)
}

// Move implements Way.
func (r *Rsync) Move(ctx context.Context) ([]results.Measurement, error) {
	from, to := r.At, testbed.Other(r.At)
	if err := plugIn(ctx, r.Bed, to, r.Plug); err != nil {
		return nil, err
	}
	checkpoint, err := r.container.checkpoint(ctx, from)
	if err != nil {
		return nil, err
	}
	size, err := r.Bed.SizeOf(from, r.container.images())
	if err != nil {
		return nil, err
	}
	copied, err := r.Bed.Copy(ctx, from, r.container.images()+"/")
	if err != nil {
		return nil, err
	}
	restore, err := r.container.restore(ctx, to, testbed.Incoming)
	if err != nil {
		return nil, err
	}
	r.At = to
	return []results.Measurement{
		{results.Downtime, checkpoint + copied + restore},
		{results.Checkpoint, checkpoint}, {results.Copy, copied}, {results.Restore, restore},
		{results.Sent, size},
	}, nil
}

// Stop implements Way.
func (r *Rsync) Stop(ctx context.Context) error {
	return errors.Join(r.Disconnect(), r.container.Remove(ctx, testbed.Nodes[0]),
		r.container.Remove(ctx, testbed.Nodes[1]))
}
