package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
)

// leaveBridge adopts a container on a bridge of its engine, so that the agent can hold, quiesce and route it
// like a container of the pool while it leaves.
func (s *source) leaveBridge(ctx context.Context) error {
	own := s.definition
	if !own.Network.OnBridge() {
		return nil
	}
	container, err := s.agent.engines.Inspect(ctx, own.ID)
	if err != nil {
		return err
	}
	ports := make([]network.Published, 0, len(container.Definition.Ports))
	for _, port := range container.Definition.Ports {
		ports = append(ports, network.Published(port))
	}
	err = s.agent.network.AdoptBridged(ctx, fmt.Sprintf("/proc/%d/ns/net", container.PID), network.Bridged{
		Container: own.ID, Address: own.Network.Address, Ports: ports,
	})
	if err != nil {
		return err
	}
	return s.refuseTarget()
}

// refuseTarget refuses connections with the target itself by way of this node: there the container
// would answer it directly, by an address that it does not expect.
func (s *source) refuseTarget() error {
	connections, err := s.agent.network.Established(s.definition.ID)
	if err != nil {
		return err
	}
	target, err := hostAddress(s.target.Address)
	if err != nil {
		return err
	}
	for _, one := range connections {
		if one.Remote.Addr() == target {
			return &problemsError{[]migration.Problem{{
				What: "connection with " + one.Remote.String(),
				Why:  "its other end is " + s.target.Name + ", to which the container goes",
				Remedy: "close it before the move, or connect to the container's port at " + s.target.Name +
					" afterwards",
			}}}
		}
	}
	return nil
}

// arriveOnBridge does that for a container that comes: it gets and sends nothing until all its
// sockets are there.
func (t *target) arriveOnBridge(ctx context.Context, arrival engine.Arrival) error {
	own := t.definition
	if !own.Network.OnBridge() {
		return nil
	}
	made, ok := arrival.(engine.Networked)
	if !ok {
		return fmt.Errorf("engine %s has no bridges", own.EngineName)
	}
	netns, err := made.Netns()
	if err != nil {
		return fmt.Errorf("network of container %s: %w", own.Name, err)
	}
	return t.agent.network.AdoptBridged(ctx, netns, network.Bridged{
		Container: own.ID, Address: own.Network.Address, From: t.move.tracker.Spec.Source,
	})
}

// networkList holds the routed networks of an engine, as the engine last listed them.
type networkList struct {
	engine interface {
		Name() string
		RoutedNetworks(ctx context.Context) ([]engine.RoutedNetwork, error)
	}

	mu    sync.Mutex
	known []network.RoutedNetwork
	err   error // of the last answer
}

// ask asks the engine. If the engine is away or does not answer, its known networks stay.
func (l *networkList) ask(ctx context.Context) {
	found, err := l.engine.RoutedNetworks(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = nil
	switch {
	case err == nil:
		l.known = nil
		for _, routed := range found {
			l.known = append(l.known, network.RoutedNetwork{Device: routed.Device, Subnet: routed.Subnet})
		}
	case !errors.Is(err, engine.ErrAway):
		l.err = err
	}
}

func (l *networkList) told() (known []network.RoutedNetwork, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known, l.err
}

// followRouted makes the routes of the engines' routed networks.
func (a *Agent) followRouted(ctx context.Context) error {
	known, err := a.routedNetworks(ctx)
	return errors.Join(err, a.network.SetRoutedNetworks(known))
}

// routedNetworks returns the networks that the engines have reported. An engine that hangs does not delay
// the networks of other engines; its own networks stay as it last reported them.
func (a *Agent) routedNetworks(ctx context.Context) (all []network.RoutedNetwork, err error) {
	for _, one := range a.networked {
		a.looks.look("networks of "+one.engine.Name(), a.guarded(func() { one.ask(ctx) }))
		known, failed := one.told()
		all, err = append(all, known...), errors.Join(err, failed)
	}
	return all, err
}

// followBridged looks what has become of containers on bridges that have come or gone: their engines end
// and start them, and give addresses to others, without telling the agent. An engine that hangs keeps it
// from those of its own containers.
func (a *Agent) followBridged(ctx context.Context) {
	// each engine is asked once
	all := sync.OnceValues(func() ([]engine.Container, error) { return a.engines.ListAnswered(ctx) })
	a.looks.look("ports", a.guarded(func() {
		if err := errors.Join(a.network.ForgetStrangers(a.isMember), a.yieldPorts(all)); err != nil &&
			ctx.Err() == nil {
			a.log.Warn("cannot update the forwarding to containers that have left their "+
				"bridges", "error", err)
		}
	}))
	places := map[string][]network.BridgedPlace{} // by the engine
	for _, place := range a.network.BridgedPlaces() {
		owner := a.engines.Owner(place.Container)
		places[owner] = append(places[owner], place)
	}
	for owner, here := range places {
		a.looks.look("bridges of "+owner, a.guarded(func() { a.followPlaces(ctx, here, all) }))
	}
}

// followPlaces does that for the containers of one engine, until it does not answer.
func (a *Agent) followPlaces(ctx context.Context, places []network.BridgedPlace, all listed) {
	for _, place := range places {
		if a.moves.moving(place.Container) {
			continue
		}
		var err error
		if place.Here {
			err = a.followHere(ctx, place, all)
		} else {
			err = a.giveWay(place, all)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("container on a bridge", "container", place.Container, "address", place.Address,
				"error", err)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
	}
}

func (a *Agent) isMember(number int) bool {
	_, is := a.peers.ByNumber(number)
	return is
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
func (a *Agent) yieldPorts(all listed) error {
	gone := func(place network.BridgedPlace) bool { return !place.Here }
	if !slices.ContainsFunc(a.network.BridgedPlaces(), gone) {
		return nil
	}
	containers, err := all()
	if err != nil {
		return err
	}
	var taken []network.Published
	for _, one := range containers {
		// one that comes keeps its ports if it is undone
		if one.PID == 0 || a.moves.moving(one.Definition.ID) {
			continue
		}
		for _, port := range one.Definition.Ports {
			taken = append(taken, network.Published(port))
		}
	}
	yielded, err := a.network.YieldPorts(taken)
	for _, port := range yielded {
		a.log.Warn("a container here now has the published port of a container that has left",
			"port", port.HostPort, "protocol", port.Protocol)
	}
	return err
}

// followHere follows a container to where it was started anew, and lets go of one that is no more.
func (a *Agent) followHere(ctx context.Context, place network.BridgedPlace, all listed) error {
	one, err := a.engines.Inspect(ctx, place.Container)
	if errors.Is(err, engine.ErrAway) {
		return nil // it may run
	}
	gone, err := isGone(place, one, err, all)
	switch {
	case err != nil:
		return err
	case gone:
		if a.moves.moving(place.Container) || !slices.Contains(a.network.BridgedPlaces(), place) {
			return nil // it has left meanwhile
		}
		a.tellRemoved(place.Container)
		return a.network.Detach(place.Container)
	case one.State != engine.Running || !one.Definition.Network.OnBridge():
		return nil
	}
	return a.network.KeepBridged(fmt.Sprintf("/proc/%d/ns/net", one.PID), place.Container, place.Address)
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

// removedBridged ends the forwarding to a container that is no more, as the node says to which it goes.
func (a *Agent) removedBridged(node, container string) error {
	if a.moves.moving(container) {
		return nil
	}
	for _, place := range a.network.BridgedPlaces() {
		if place.Container == container && place.Via == node && !place.Here {
			return a.network.ForgetBridged(place.Address)
		}
	}
	return nil
}

// giveWay ends the forwarding of an address that an engine here has given to another container.
func (a *Agent) giveWay(place network.BridgedPlace, all listed) error {
	other, err := all.other(place)
	if err != nil || other == nil || !slices.Contains(a.network.BridgedPlaces(), place) {
		return err
	}
	a.log.Warn("forwarding to a container that has left ends: another container here now has its address",
		"container", place.Container, "address", place.Address, "other", engine.Label(other.Definition))
	return a.network.ForgetBridged(place.Address)
}

// bridgedHere are the containers on bridges that have come to this node: who forwards to them
// learns that they are here still.
func (l *locations) bridgedHere() []*api.Location {
	var guests []*api.Location
	for _, place := range l.agent.network.BridgedPlaces() {
		if place.Stable() {
			guests = append(guests, &api.Location{Address: place.Address.String(), Container: place.Container,
				Node: l.agent.self.Name})
		}
	}
	return guests
}

// missesAllowed is how often in a row a node may leave out a container of which this one thinks
// that it is there, and how often another one has to say that it has it while the first one cannot
// be reached.
const missesAllowed = 5

// heardBridged takes a peer's word on containers on bridges that have left this node: packets go
// where they are, and nowhere once they are no more.
func (l *locations) heardBridged(node string, now map[netip.Addr]string) {
	for _, place := range l.agent.network.BridgedPlaces() {
		if place.Here || l.moving(place.Container) {
			l.clearWords(place.Address)
			continue
		}
		var err error
		switch l.weigh(place, node, now[place.Address] == place.Container, l.agent.peers.Reaches(place.Via)) {
		case isThere:
			err = l.agent.network.Route(place.Address, network.Via(node))
		case isNoMore:
			err = l.agent.network.ForgetBridged(place.Address)
		case asBefore:
		}
		if err != nil {
			l.agent.log.Warn("route to a container", "address", place.Address, "node", node, "error", err)
		}
	}
}

// What a node's word makes of the place of a container.
type verdict int

const (
	asBefore verdict = iota
	isThere          // at the node that has spoken
	isNoMore
)

// weigh tells what to make of it that a node lists a container on a bridge, or does not. Any node
// may say that it has it; who does is believed once the node to which the container's packets go
// does not say so any more, or cannot be asked for some time.
func (l *locations) weigh(place network.BridgedPlace, node string, lists, reached bool) verdict {
	address := place.Address
	switch {
	case lists && place.Via == node:
		l.clearWords(address)
		return asBefore
	case lists:
		if reached {
			delete(l.claims, address)
		} else {
			l.claims[address]++
		}
		if place.Via != "" && l.missed[address] == 0 && l.claims[address] < missesAllowed {
			return asBefore
		}
		l.clearWords(address)
		return isThere
	case place.Via == node:
		if l.missed[address]++; l.missed[address] < missesAllowed {
			return asBefore
		}
		l.clearWords(address)
		return isNoMore
	}
	return asBefore
}

// clearWords forgets what was said of an address.
func (l *locations) clearWords(address netip.Addr) {
	delete(l.missed, address)
	delete(l.claims, address)
}
