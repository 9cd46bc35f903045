package moves

import (
	"context"
	"fmt"
	"net"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// The ways that only the suite files has.
const (
	WayRestart = "godwit restart"   // its processes start anew
	WayStopped = "godwit restart 0" // nothing is copied before the stop
)

// The ways that only the suite postcopy has.
const (
	WayLazy     = "criu lazy"
	WayPostCopy = "godwit post-copy"
	WayHybrid   = "godwit hybrid"
)

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// The ways.
const (
	WayFloor   = "criu floor"
	WayRsync   = "runc and rsync"
	WayPodman  = "podman"
	WayCold    = "godwit cold"
	WayPreCopy = "godwit pre-copy"
)

// The ways that only the suite studies has.
const (
	WayAuto = "godwit auto"
)

// Way is a way to move a container to another node and back.
type Way interface {
	Name() string
	// Start starts the container on the first node, with its data and its client.
	Start(ctx context.Context) error
	// Move moves the container once, to the other node, and returns the measurements.
	Move(ctx context.Context) ([]results.Measurement, error)
	// Stop removes everything that start and move have made, unless the end of the lab does.
	Stop(ctx context.Context) error
}

// Peer is the common part of ways other than Godwit's.
type Peer struct {
	Bed      *testbed.Bed
	Workload Workload
	Plug     Plug
	At       string // the node on which the container is
	client   net.Conn
}

// connect stores the container's data, and connects a client that stays connected. pid returns the PID of
// its first process in the node.
func (p *Peer) connect(ctx context.Context, pid func(ctx context.Context, node string) (int, error)) error {
	if p.Workload.Memory != nil {
		number, err := pid(ctx, p.At)
		if err != nil {
			return err
		}
		return p.Bed.AwaitMemory(ctx, p.At, number, p.Workload.Memory.Size)
	}
	if p.Workload.Port == 0 {
		return nil
	}
	conn, _, err := fill(ctx, p.Bed, p.At, p.Plug.Server(p.Workload.Port))
	if err != nil {
		return fmt.Errorf("redis of the way %s: %w", p.Plug.Name, err)
	}
	p.client = conn
	return nil
}

// Disconnect closes the client's connection.
func (p *Peer) Disconnect() error {
	if p.client == nil {
		return nil
	}
	err := p.client.Close()
	p.client = nil
	return err
}
