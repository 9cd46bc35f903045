package attachment

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/network"
)

// Config of Attachments.
type Config struct {
	Engines *engine.Set
	Own     engine.Engine // the node's own
	// Addressed lists the containers of those engines whose containers have addresses of the pool.
	Addressed func(ctx context.Context) ([]engine.Container, error)
	Unopened  error // why there may be more such engines
	Network   Network
	Routes    Routes
	Adopter   *Adopter
	// Runs is called with each container that runs when the agent starts.
	Runs func(definition engine.Definition)
	Log  *slog.Logger
}

// Network has what was made for containers, and their leases. See network.Network.
type Network interface {
	Reconcile(keep network.Keep) error
	Leases() []network.Lease
}

// Routes lead to containers of this node. See network.Network.
type Routes interface {
	Attach(ctx context.Context, container string, address network.Address) (netns string, err error)
	Route(address netip.Addr, to network.Destination) error
	Unroute(address netip.Addr) error
	IsBridged(container string, address netip.Addr) bool
}

// Attachments makes what connects the containers of this node.
type Attachments struct{ config Config }

// New does nothing yet.
func New(config Config) *Attachments { return &Attachments{config} }

// Reconcile makes the network what the containers of this node need, and removes what an earlier agent left
// of others. What migrations need they set themselves when they are recovered, for which they wait: so only
// those engines are asked here whose containers have addresses of the pool.
func (c *Attachments) Reconcile(ctx context.Context) error {
	if _, err := c.config.Own.List(ctx); err != nil {
		return err
	}
	containers, unknown := c.config.Addressed(ctx)
	if err := c.sweep(containers, errors.Join(unknown, c.config.Unopened)); err != nil {
		return err
	}
	for _, container := range containers {
		c.reconcileOne(ctx, container)
	}
	return nil
}

// ReconcileOthers is Reconcile for the containers of the other engines, which have made their networks
// themselves.
func (c *Attachments) ReconcileOthers(ctx context.Context) {
	containers, err := c.config.Engines.ListAnswered(ctx)
	if err != nil && ctx.Err() == nil {
		c.config.Log.Warn("list of containers", "error", err)
	}
	for _, container := range containers {
		if container.Definition.EngineName != "" && !adoptable(container.Definition) {
			c.reconcileOne(ctx, container)
		}
	}
}

// sweep removes what an earlier agent left of containers that are not here. If not all are
// known nothing is removed: one whose engine does not answer may run.
func (c *Attachments) sweep(containers []engine.Container, unknown error) error {
	if unknown != nil {
		c.config.Log.Error("cannot remove what an earlier agent left of the network: not all containers are "+
			"known; restart the agent to try again", "error", unknown)
		return nil
	}
	var keep network.Keep
	for _, container := range containers {
		keep.Containers = append(keep.Containers, container.Definition.ID)
		if container.Definition.Network.Address.IsValid() {
			keep.Routes = append(keep.Routes, container.Definition.Network.Address)
		}
	}
	keep.Routes = append(keep.Routes, c.awayAddresses(containers)...)
	return c.config.Network.Reconcile(keep)
}

// reconcileOne reattaches a container. One for which that fails must not keep the others, and the
// agent, from working.
func (c *Attachments) reconcileOne(ctx context.Context, container engine.Container) {
	name := container.Definition.Name
	switch container.State {
	case engine.Damaged:
		c.config.Log.Error("the record of a container cannot be read; the container is left as it is",
			"container", name,
			"id", container.Definition.ID)
	case engine.Running:
		reattach := func() error { return c.reattach(ctx, container.Definition) }
		if container.Definition.Network.OnBridge() {
			reattach = func() error { return nil } // its engine has made it, and Bridges looks after it
		}
		if adoptable(container.Definition) {
			reattach = func() error { return c.config.Adopter.adopt(ctx, container) }
		}
		if err := reattach(); err != nil {
			c.config.Log.Error("container is not connected; start the agent again to repeat it", "container",
				name, "error", err)
		}
		// an agent that was killed may have restored it just before
		go guard.Logged(c.config.Log, func() { c.config.Runs(container.Definition) })()
	case engine.Created, engine.Frozen, engine.Arriving, engine.Exited:
	}
}

// awayAddresses are those of this node's containers that run elsewhere: the routes to them stay.
func (c *Attachments) awayAddresses(here []engine.Container) []netip.Addr {
	present := map[string]bool{}
	for _, container := range here {
		present[container.Definition.ID] = container.Definition.Network.Address.IsValid()
	}
	var away []netip.Addr
	for _, lease := range c.config.Network.Leases() {
		if !present[lease.Container] {
			away = append(away, lease.Address)
		}
	}
	return away
}

// routePatience is how long a route waits for an engine to say whether the container runs.
const routePatience = 3 * time.Second

// RouteHere redirects the address of a container of this node to it. One that does not run, because the
// node was restarted or it ended, needs no way to it. One whose engine hangs may run.
func (c *Attachments) RouteHere(ctx context.Context, definition engine.Definition) error {
	if definition.Network.OnBridge() &&
		!c.config.Routes.IsBridged(definition.ID, definition.Network.Address) {
		return nil // nothing was changed
	}
	asking, cancel := context.WithTimeout(ctx, routePatience)
	defer cancel()
	container, err := c.config.Engines.EngineFor(definition).Inspect(asking, definition.ID)
	if asking.Err() != nil && ctx.Err() == nil {
		return c.config.Routes.Route(definition.Network.Address, network.Local(definition.ID))
	}
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if err != nil || container.State != engine.Running && container.State != engine.Frozen {
		return c.config.Routes.Unroute(definition.Network.Address)
	}
	return c.config.Routes.Route(definition.Network.Address, network.Local(definition.ID))
}

// reattach makes sure that a running container has its route. What is there already stays as it is.
func (c *Attachments) reattach(ctx context.Context, definition engine.Definition) error {
	if _, err := c.Attach(ctx, definition); err != nil {
		return err
	}
	return c.config.Routes.Route(definition.Network.Address, network.Local(definition.ID))
}

// Attach makes a container's network namespace. It is not routed yet.
func (c *Attachments) Attach(ctx context.Context, definition engine.Definition) (netns string, err error) {
	if !definition.Network.Pooled() {
		return "", nil // the engine makes its own
	}
	return c.config.Routes.Attach(ctx, definition.ID, network.Address{
		IP: definition.Network.Address, MAC: definition.Network.MAC, MTU: definition.Network.MTU,
	})
}
