package containers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Config of the containers of a node.
type Config struct {
	Images       Images
	Engines      Engines
	Own          Own
	Idle         Idle
	Reservations Reservations
	Leases       Leases
	Network      Network
	Stages       Stages
	// CheckVolumes refuses a new container that would have what is just being moved.
	CheckVolumes func(of engine.Definition) error
	// Attach makes the network namespace of a container.
	Attach func(ctx context.Context, of engine.Definition) (netns string, err error)
	// Ran notes that a container was started here.
	Ran func(container string)
	// Changed notes that an engine has other containers than before.
	Changed func(of engine.Engine)
	// Removed tells other nodes of a container that is about to be removed.
	Removed func(container string)
}

// Images of the node. See image.Store.
type Images interface {
	Resolve(reference string) (image.Image, error)
}

// Engines of the node. See engine.Set.
type Engines interface {
	EngineFor(of engine.Definition) engine.Engine
	Inspect(ctx context.Context, reference string) (engine.Container, error)
}

// Own is the node's own engine. See embedded.Engine.
type Own interface {
	Create(ctx context.Context, definition engine.Definition, netns string) error
	Start(ctx context.Context, id string) error
}

// Idle finds containers that no migration has to do with, or only with what follows them. See
// migrate.Containers.
type Idle interface {
	Idle(ctx context.Context, reference string) (engine.Container, error)
	Own(ctx context.Context, reference string) (engine.Container, error)
}

// Reservations are names and addresses that are about to be taken. See reserve.Reservations.
type Reservations interface {
	Take(by string, definition engine.Definition) error
	Release(by string)
}

// Leases are the addresses of this node's part of the pool. See lease.Leases.
type Leases interface {
	Making(container string) error
	Made(container string)
	AtHome(address netip.Addr) bool
	GiveBack(definition engine.Definition) error
}

// Network of the node. See network.Network.
type Network interface {
	Lease(id string) (network.Address, error)
	ReleaseLease(id string) error
	Route(address netip.Addr, to network.Destination) error
	Unroute(address netip.Addr) error
	Detach(id string) error
}

// Stages are copies at other nodes.
type Stages interface {
	// Candidates finds the nodes that a user named as ones to which a container may go.
	Candidates(names []string) ([]identity.Node, error)
	// To begins to bring the layers of a container that was just started to nodes to which it may go.
	To(definition engine.Definition, nodes []identity.Node)
	// Gone gives up the copies of a container that is about to be removed.
	Gone(ctx context.Context, container string) error
}

// Life of the containers of a node.
type Life struct{ Config }

// New makes and removes nothing yet.
func New(c Config) *Life { return &Life{c} }

// Run makes a container from an image and starts it. What was made is removed again if a later part fails.
func (l *Life) Run(ctx context.Context, request *api.RunRequest) (engine.Definition, error) {
	definition, err := define(l.Images, request)
	if err != nil {
		return definition, err
	}
	candidates, err := l.Stages.Candidates(request.StageTo)
	if err != nil {
		return definition, err
	}
	if _, err := l.Engines.Inspect(ctx, definition.Name); err == nil {
		return definition, fmt.Errorf("%w: %s", engine.ErrNameTaken, definition.Name)
	}
	if err := l.CheckVolumes(definition); err != nil {
		return definition, err
	}
	if err := l.Reservations.Take(definition.ID, definition); err != nil {
		return definition, err
	}
	defer l.Reservations.Release(definition.ID)
	if err := l.Leases.Making(definition.ID); err != nil {
		return definition, err
	}
	address, err := l.Network.Lease(definition.ID)
	if err != nil {
		return definition, err
	}
	definition.Network = engine.Network{Address: address.IP, MAC: address.MAC, MTU: address.MTU}
	if err := l.create(ctx, definition); err != nil {
		undone := l.forget(context.WithoutCancel(ctx), definition)
		if undone == nil {
			l.Leases.Made(definition.ID)
		}
		return definition, errors.Join(err, undone)
	}
	l.Leases.Made(definition.ID)
	l.Ran(definition.ID)
	l.Stages.To(definition, candidates)
	return definition, nil
}

func (l *Life) create(ctx context.Context, definition engine.Definition) error {
	netns, err := l.Attach(ctx, definition)
	if err != nil {
		return err
	}
	if err := l.Own.Create(ctx, definition, netns); err != nil {
		return err
	}
	if err := l.Network.Route(definition.Network.Address, network.Local(definition.ID)); err != nil {
		return err
	}
	return l.Own.Start(ctx, definition.ID)
}

// forget removes all of a container, and gives its address back.
func (l *Life) forget(ctx context.Context, definition engine.Definition) error {
	of := l.Engines.EngineFor(definition)
	defer l.Changed(of)
	err := of.Remove(ctx, definition.ID, true)
	if errors.Is(err, engine.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return err
	}
	if definition.Network.OnBridge() {
		return l.Network.Detach(definition.ID)
	}
	if !definition.Network.Address.IsValid() {
		return nil
	}
	err = l.Network.Detach(definition.ID)
	if l.Leases.AtHome(definition.Network.Address) {
		return errors.Join(err, l.Network.Unroute(definition.Network.Address),
			l.Network.ReleaseLease(definition.ID))
	}
	return errors.Join(err, l.Leases.GiveBack(definition), l.Network.Unroute(definition.Network.Address))
}

// Stop ends a container.
func (l *Life) Stop(ctx context.Context, reference string, grace time.Duration) error {
	container, err := l.Idle.Own(ctx, reference)
	if err != nil {
		return err
	}
	of := l.Engines.EngineFor(container.Definition)
	defer l.Changed(of)
	return of.Stop(ctx, container.Definition.ID, grace)
}

// Remove removes a container. One that runs is removed by force only.
func (l *Life) Remove(ctx context.Context, reference string, force bool) error {
	container, err := l.Idle.Idle(ctx, reference)
	if err != nil {
		return err
	}
	if container.State == engine.Running && !force {
		return fmt.Errorf("container %s is running: stop it first, or remove it with --force",
			container.Definition.Name)
	}
	if err := l.Stages.Gone(ctx, container.Definition.ID); err != nil {
		return err
	}
	l.Removed(container.Definition.ID)
	return l.forget(ctx, container.Definition)
}
