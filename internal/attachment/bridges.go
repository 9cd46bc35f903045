package attachment

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/network"
)

// BridgesConfig is the configuration of Bridges.
type BridgesConfig struct {
	Engines *engine.Set
	Looks   *inventory.Looks
	Network Bridged
	Ports   Ports
	// Member reports whether a node of this number is in the cluster.
	Member func(number int) bool
	Moves  Moves
	// Removed lets other nodes give up what they keep in case that a container comes back.
	Removed func(container string)
	Log     *slog.Logger
}

// Bridged is a network that knows containers on bridges. See network.Network.
type Bridged interface {
	BridgedPlaces() []network.BridgedPlace
	KeepBridged(netns, container string, address netip.Addr) error
	ForgetBridged(address netip.Addr) error
	Detach(container string) error
}

// Ports are the published ports of containers that have left. See network.Network.
type Ports interface {
	ForgetStrangers(member func(number int) bool) error
	YieldPorts(taken []network.Published) (yielded []network.Published, err error)
}

// Bridges looks after containers on bridges of their engines that have come to this node or left it.
type Bridges struct{ config BridgesConfig }

// NewBridges does nothing yet.
func NewBridges(config BridgesConfig) *Bridges { return &Bridges{config} }

// follow looks what has become of containers on bridges that have come or gone: their engines end
// and start them, and give addresses to others, without telling the agent. An engine that hangs keeps it
// from those of its own containers.
func (b *Bridges) follow(ctx context.Context) {
	// each engine is asked once
	all := sync.OnceValues(func() ([]engine.Container, error) { return b.config.Engines.ListAnswered(ctx) })
	b.config.Looks.Look("ports", guard.Logged(b.config.Log, func() {
		err := errors.Join(b.config.Ports.ForgetStrangers(b.config.Member), b.yieldPorts(all))
		if err != nil && ctx.Err() == nil {
			b.config.Log.Warn("cannot update the forwarding to containers that have left their "+
				"bridges", "error", err)
		}
	}))
	places := map[string][]network.BridgedPlace{} // by the engine
	for _, place := range b.config.Network.BridgedPlaces() {
		owner := b.config.Engines.Owner(place.Container)
		places[owner] = append(places[owner], place)
	}
	for owner, here := range places {
		b.config.Looks.Look("bridges of "+owner,
			guard.Logged(b.config.Log, func() { b.followPlaces(ctx, here, all) }))
	}
}

// followPlaces does that for the containers of one engine, until it does not answer.
func (b *Bridges) followPlaces(ctx context.Context, places []network.BridgedPlace, all listed) {
	for _, place := range places {
		if b.config.Moves.Moving(place.Container) {
			continue
		}
		var err error
		if place.Here {
			err = b.followHere(ctx, place, all)
		} else {
			err = b.giveWay(place, all)
		}
		if err != nil && ctx.Err() == nil {
			b.config.Log.Warn("container on a bridge", "container", place.Container, "address", place.Address,
				"error", err)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
	}
}

// listed are all containers of this node.
type listed func() ([]engine.Container, error)

// other is one that runs and has the address of another container; nil if there is none.
func (all listed) other(place network.BridgedPlace) (*engine.Container, error) {
	containers, err := all()
	if err != nil {
		return nil, err
	}
	for _, one := range containers {
		own := one.Definition
		if own.Network.OnBridge() && own.Network.Address == place.Address && own.ID != place.Container &&
			one.PID != 0 {
			return &one, nil
		}
	}
	return nil, nil
}

// yieldPorts gives the published ports of containers that have left to those here that have them now.
func (b *Bridges) yieldPorts(all listed) error {
	gone := func(place network.BridgedPlace) bool { return !place.Here }
	if !slices.ContainsFunc(b.config.Network.BridgedPlaces(), gone) {
		return nil
	}
	containers, err := all()
	if err != nil {
		return err
	}
	var taken []network.Published
	for _, one := range containers {
		// one that comes keeps its ports if it is undone
		if one.PID == 0 || b.config.Moves.Moving(one.Definition.ID) {
			continue
		}
		for _, port := range one.Definition.Ports {
			taken = append(taken, network.Published(port))
		}
	}
	yielded, err := b.config.Ports.YieldPorts(taken)
	for _, port := range yielded {
		b.config.Log.Warn("a container here now has the published port of a container that has left",
			"port", port.HostPort, "protocol", port.Protocol)
	}
	return err
}

// followHere follows a container to where it was started anew, and lets go of one that is no more.
func (b *Bridges) followHere(ctx context.Context, place network.BridgedPlace, all listed) error {
	one, err := b.config.Engines.Inspect(ctx, place.Container)
	if errors.Is(err, engine.ErrAway) {
		return nil // it may run
	}
	gone, err := isGone(place, one, err, all)
	switch {
	case err != nil:
		return err
	case gone:
		if b.config.Moves.Moving(place.Container) ||
			!slices.Contains(b.config.Network.BridgedPlaces(), place) {
			return nil // it has left meanwhile
		}
		b.config.Removed(place.Container)
		return b.config.Network.Detach(place.Container)
	case one.State != engine.Running || !one.Definition.Network.OnBridge():
		return nil
	}
	return b.config.Network.KeepBridged(netnsOf(one.PID), place.Container, place.Address)
}

// isGone tells of a container that was here, by what its engine says, whether nothing that comes
// for it is to go to it any more. One that has come from elsewhere and has ended may be started
// again, by its engine at once: it is reached by where it was until it is removed, or its address
// is another's.
func isGone(place network.BridgedPlace, now engine.Container, err error, all listed) (bool, error) {
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return true, nil
	case err != nil:
		return false, err
	case now.State == engine.Running && now.Definition.Network.OnBridge():
		return now.Definition.Network.Address != place.Address, nil
	case now.State != engine.Exited:
		return false, nil
	case !place.Came:
		return true, nil
	}
	other, err := all.other(place)
	return other != nil, err
}

// Removed ends the forwarding to a container that is no more, as the node says to which it goes.
func (b *Bridges) Removed(node, container string) error {
	if b.config.Moves.Moving(container) {
		return nil
	}
	for _, place := range b.config.Network.BridgedPlaces() {
		if place.Container == container && place.Via == node && !place.Here {
			return b.config.Network.ForgetBridged(place.Address)
		}
	}
	return nil
}

// giveWay ends the forwarding of an address that an engine here has given to another container.
func (b *Bridges) giveWay(place network.BridgedPlace, all listed) error {
	other, err := all.other(place)
	if err != nil || other == nil || !slices.Contains(b.config.Network.BridgedPlaces(), place) {
		return err
	}
	b.config.Log.Warn("forwarding to a container that has left ends: another container here now has "+
		"its address", "container", place.Container, "address", place.Address,
		"other", engine.Label(other.Definition))
	return b.config.Network.ForgetBridged(place.Address)
}
