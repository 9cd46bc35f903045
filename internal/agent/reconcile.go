package agent

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
)

// reconcile makes the network what the containers of this node need, and removes what an earlier agent left
// of others. What migrations need they set themselves when they are recovered, for which they wait: so only
// those engines are asked here whose containers have addresses of the pool.
func (a *Agent) reconcile() error {
	if _, err := a.embedded.List(a.ctx); err != nil {
		return err
	}
	containers, unknown := a.lists.Addressed(a.ctx)
	if err := a.sweepNetwork(containers, errors.Join(unknown, a.unopened)); err != nil {
		return err
	}
	for _, container := range containers {
		a.reconcileOne(container)
	}
	return nil
}

// reconcileOthers is reconcile for the containers of the other engines, which have made their networks
// themselves.
func (a *Agent) reconcileOthers(ctx context.Context) {
	containers, err := a.engines.ListAnswered(ctx)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("list of containers", "error", err)
	}
	for _, container := range containers {
		if container.Definition.EngineName != "" && !adoptable(container.Definition) {
			a.reconcileOne(container)
		}
	}
}

// sweepNetwork removes what an earlier agent left of containers that are not here. If not all are
// known nothing is removed: one whose engine does not answer may run.
func (a *Agent) sweepNetwork(containers []engine.Container, unknown error) error {
	if unknown != nil {
		a.log.Error("cannot remove what an earlier agent left of the network: not all containers are "+
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
	keep.Routes = append(keep.Routes, a.awayAddresses(containers)...)
	return a.network.Reconcile(keep)
}

// reconcileOne reattaches a container. One for which that fails must not keep the others, and the
// agent, from working.
func (a *Agent) reconcileOne(container engine.Container) {
	name := container.Definition.Name
	switch container.State {
	case engine.Damaged:
		a.log.Error("the record of a container cannot be read; the container is left as it is",
			"container", name,
			"id", container.Definition.ID)
	case engine.Running:
		reattach := func() error { return a.reattach(container.Definition) }
		if container.Definition.Network.OnBridge() {
			reattach = func() error { return nil } // its engine has made it, and followBridged looks after it
		}
		if adoptable(container.Definition) {
			reattach = func() error { return a.adopt(a.ctx, container) }
		}
		if err := reattach(); err != nil {
			a.log.Error("container is not connected; start the agent again to repeat it", "container", name,
				"error", err)
		}
		// an agent that was killed may have restored it just before
		go a.guarded(func() { a.giveRoom(container.Definition) })()
	case engine.Created, engine.Frozen, engine.Arriving, engine.Exited:
	}
}

// awayAddresses are those of this node's containers that run elsewhere: the routes to them stay.
func (a *Agent) awayAddresses(here []engine.Container) []netip.Addr {
	present := map[string]bool{}
	for _, container := range here {
		present[container.Definition.ID] = container.Definition.Network.Address.IsValid()
	}
	var away []netip.Addr
	for _, lease := range a.network.Leases() {
		if !present[lease.Container] {
			away = append(away, lease.Address)
		}
	}
	return away
}

// routePatience is how long a route waits for an engine to say whether the container runs.
const routePatience = 3 * time.Second

// routeHere redirects the address of a container of this node to it. One that does not run, because the
// node was restarted or it ended, needs no way to it. One whose engine hangs may run.
func (a *Agent) routeHere(ctx context.Context, definition engine.Definition) error {
	if definition.Network.OnBridge() && !a.network.IsBridged(definition.ID, definition.Network.Address) {
		return nil // nothing was changed
	}
	asking, cancel := context.WithTimeout(ctx, routePatience)
	defer cancel()
	container, err := a.engines.EngineFor(definition).Inspect(asking, definition.ID)
	if asking.Err() != nil && ctx.Err() == nil {
		return a.network.Route(definition.Network.Address, network.Local(definition.ID))
	}
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if err != nil || container.State != engine.Running && container.State != engine.Frozen {
		return a.network.Unroute(definition.Network.Address)
	}
	return a.network.Route(definition.Network.Address, network.Local(definition.ID))
}

// reattach makes sure that a running container has its route. What is there already stays as it is.
func (a *Agent) reattach(definition engine.Definition) error {
	if _, err := a.attach(a.ctx, definition); err != nil {
		return err
	}
	return a.network.Route(definition.Network.Address, network.Local(definition.ID))
}
