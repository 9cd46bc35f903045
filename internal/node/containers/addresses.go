package containers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Addresses takes addresses back whose containers were removed at other nodes.
type Addresses struct {
	Leases    Holders
	Locations Locations
	Network   Routes
	// Addressed lists the containers here that have addresses of the pool.
	Addressed func(ctx context.Context) ([]engine.Container, error)
	// Refuse is the error for a container that is being migrated; nil: it is not.
	Refuse func(container string) error
}

// Holders know which container has an address. See lease.Leases.
type Holders interface {
	Of(address netip.Addr) (container string)
}

// Locations know which node has the container of an address. See location.Locations.
type Locations interface {
	MayRelease(node string, address netip.Addr) bool
	Released(address netip.Addr)
}

// Routes to addresses, and their leases. See network.Network.
type Routes interface {
	Unroute(address netip.Addr) error
	ReleaseLease(id string) error
}

// MayRelease reports whether a node has the container of an address, as far as is known here.
func (a *Addresses) MayRelease(node string, address netip.Addr) bool {
	return a.Locations.MayRelease(node, address)
}

// Release takes an address back whose container was removed elsewhere. Only the lease's own
// container gives it back, and not while it is here.
func (a *Addresses) Release(ctx context.Context, address netip.Addr, container string) error {
	if a.Leases.Of(address) != container {
		return nil
	}
	containers, err := a.Addressed(ctx)
	if err != nil {
		return err // it may be here
	}
	if slices.ContainsFunc(containers,
		func(c engine.Container) bool { return c.Definition.ID == container }) {
		return fmt.Errorf("%w: container %.12s is on this node", api.ErrInvalid, container)
	}
	if err := a.Refuse(container); err != nil {
		return err
	}
	a.Locations.Released(address)
	return errors.Join(a.Network.Unroute(address), a.Network.ReleaseLease(container))
}

// Removals tells other nodes of containers that are no more.
type Removals struct {
	Nodes   Nodes
	Timeout time.Duration   // of a call
	Life    context.Context //nolint:containedctx // The life of the daemon: calls outlive the removal.
	Log     *slog.Logger
}

// Nodes are the other nodes. See cluster.Peers.
type Nodes interface {
	Others() []identity.Node
	Client(node identity.Node) (*grpc.ClientConn, error)
}

// Tell lets other nodes give up what they keep in case that a container comes back. One that
// does not hear of it keeps it for its time.
func (r *Removals) Tell(container string) {
	for _, node := range r.Nodes.Others() {
		go guard.Logged(r.Log, func() {
			client, err := r.Nodes.Client(node)
			if err != nil {
				return
			}
			ctx, cancel := context.WithTimeout(r.Life, r.Timeout)
			defer cancel()
			_, err = api.NewPeerClient(client).Removed(ctx, &api.RemovedRequest{Container: container})
			if err != nil {
				r.Log.Debug("cannot tell other nodes of a removed container", "node", node.Name, "error", err)
			}
		})()
	}
}
