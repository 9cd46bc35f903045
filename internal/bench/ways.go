package bench

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
)

// way is a way to move a container to another node and back.
type way interface {
	name() string
	// start starts the container on the first node, with its data and its client.
	start(ctx context.Context) error
	// move moves the container once, to the other node, and returns the measurements.
	move(ctx context.Context) ([]results.Measurement, error)
	// stop removes everything that start and move have made, unless the end of the lab does.
	stop(ctx context.Context) error
}

// peer is the common part of ways other than Godwit's.
type peer struct {
	bed      *testbed.Bed
	workload containerWorkload
	plug     plug
	at       string // the node on which the container is
	client   net.Conn
}

// connect stores the container's data, and connects a client that stays connected. pid returns the PID of
// its first process in the node.
func (p *peer) connect(ctx context.Context, pid func(ctx context.Context, node string) (int, error)) error {
	if p.workload.memory != nil {
		number, err := pid(ctx, p.at)
		if err != nil {
			return err
		}
		return p.bed.AwaitMemory(ctx, p.at, number, p.workload.memory.Size)
	}
	if p.workload.port == 0 {
		return nil
	}
	conn, _, err := fill(ctx, p.bed, p.at, p.plug.server(p.workload.port))
	if err != nil {
		return fmt.Errorf("redis of the way %s: %w", p.plug.name, err)
	}
	p.client = conn
	return nil
}

func (p *peer) disconnect() error {
	if p.client == nil {
		return nil
	}
	err := p.client.Close()
	p.client = nil
	return err
}

// floorWay is runc on one node: CRIU's time when nothing is sent. The others are compared with it.
type floorWay struct {
	peer
	container bundle
}

func newFloorWay(b *testbed.Bed, w containerWorkload, model engine.Container) *floorWay {
	plug := plug{name: "floor", number: 1}
	return &floorWay{
		peer:      peer{bed: b, workload: w, plug: plug, at: testbed.Nodes[0]},
		container: newBundle(b, plug, model),
	}
}

func (f *floorWay) name() string { return wayFloor }

func (f *floorWay) start(ctx context.Context) error {
	if err := f.container.make(ctx, testbed.Nodes[0], f.at); err != nil {
		return err
	}
	if err := f.container.start(ctx, f.at); err != nil {
		return err
	}
	return f.connect(ctx, f.container.pid)
}

// move checkpoints and restores in place. The container is frozen before the time begins, because CRIU's
// own freezing waits in steps of 100 ms; so the images exclude cgroups, or it would be restored frozen.
func (f *floorWay) move(ctx context.Context) ([]results.Measurement, error) {
	if _, err := f.bed.Exec(ctx, f.at, f.container.runc("pause", f.container.name)...); err != nil {
		return nil, err
	}
	cgroups := []string{"--manage-cgroups-mode", "ignore"}
	checkpoint, err := f.container.checkpoint(ctx, f.at, cgroups...)
	if err != nil {
		return nil, err
	}
	restore, err := f.container.restore(ctx, f.at, f.container.images(), cgroups...)
	if err != nil {
		return nil, err
	}
	return []results.Measurement{
		{results.Downtime, checkpoint + restore}, {results.Checkpoint, checkpoint},
		{results.Restore, restore},
	}, nil
}

func (f *floorWay) stop(ctx context.Context) error {
	return errors.Join(f.disconnect(), f.container.remove(ctx, f.at))
}

// rsyncWay is the way of study B (Puliafito et al., Sensors 2019), cold: runc checkpoint, rsync without
// compression, runc restore. It is faster than in the study: images stay in memory, and nftables holds
// packets.
type rsyncWay struct {
	peer
	container bundle
}

func newRsyncWay(b *testbed.Bed, w containerWorkload, model engine.Container) *rsyncWay {
	plug := plug{name: "rsync", number: 2}
	return &rsyncWay{
		peer:      peer{bed: b, workload: w, plug: plug, at: testbed.Nodes[0]},
		container: newBundle(b, plug, model),
	}
}

func (r *rsyncWay) name() string { return wayRsync }

func (r *rsyncWay) start(ctx context.Context) error {
	for _, node := range []string{testbed.Other(r.at), r.at} {
		if err := r.container.make(ctx, testbed.Nodes[0], node); err != nil {
			return err
		}
		// on both, so that both have the devices that runc makes
		if err := r.container.start(ctx, node); err != nil {
			return err
		}
	}
	if err := r.container.kill(ctx, testbed.Other(r.at)); err != nil {
		return err
	}
	return r.connect(ctx, r.container.pid)
}

func (r *rsyncWay) move(ctx context.Context) ([]results.Measurement, error) {
	from, to := r.at, testbed.Other(r.at)
	if err := plugIn(ctx, r.bed, to, r.plug); err != nil {
		return nil, err
	}
	checkpoint, err := r.container.checkpoint(ctx, from)
	if err != nil {
		return nil, err
	}
	size, err := r.bed.SizeOf(from, r.container.images())
	if err != nil {
		return nil, err
	}
	copied, err := r.bed.Copy(ctx, from, r.container.images()+"/")
	if err != nil {
		return nil, err
	}
	restore, err := r.container.restore(ctx, to, testbed.Incoming)
	if err != nil {
		return nil, err
	}
	r.at = to
	return []results.Measurement{
		{results.Downtime, checkpoint + copied + restore},
		{results.Checkpoint, checkpoint}, {results.Copy, copied}, {results.Restore, restore},
		{results.Sent, size},
	}, nil
}

func (r *rsyncWay) stop(ctx context.Context) error {
	return errors.Join(r.disconnect(), r.container.remove(ctx, testbed.Nodes[0]),
		r.container.remove(ctx, testbed.Nodes[1]))
}
