package agent

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
)

// locations are the places of containers that live away from their home: each node tells the others
// of its guests, so that packets need not take the way by the home node. It is a shortcut: without
// it they still arrive.
type locations struct {
	agent *Agent
	// all are the containers of this node, withAddress those that have addresses of the pool, and watched
	// those of the engine that tells of changes, if it is watching.
	all, withAddress, watched *inventory
	watching                  atomic.Bool
	// an engine's containers are not among all because its first look has not ended
	unheard atomic.Bool

	// guards others; a migration that ends locks it, so its holder calls nothing
	othersMu sync.Mutex
	others   map[string]*inventory // those of other engines, by name

	mu   sync.Mutex
	away map[netip.Addr]place
	// missed is how often in a row nodes have not told of a container on a bridge.
	missed map[netip.Addr]int
	// claims is how often other nodes have told of one while the node at which it was could not be reached.
	claims map[netip.Addr]int
}

// place is where a container was last heard of.
type place struct {
	node, container string
	// since when that node has it no longer, and no other has told of it; zero: it has
	left time.Time
}

// unclaimedFor is how long no node has told of a container before any of them may say that it is no
// more: the node that has the container would have told of it in one of three hellos.
const unclaimedFor = 3 * cluster.HelloEvery

func newLocations(agent *Agent) *locations {
	l := &locations{
		agent: agent, others: map[string]*inventory{},
		away: map[netip.Addr]place{}, missed: map[netip.Addr]int{}, claims: map[netip.Addr]int{},
	}
	l.all = &inventory{list: l.listTold}
	l.withAddress = &inventory{list: func(ctx context.Context) ([]engine.Container,
		error) {
		return agent.addressedBy(ctx, l.told)
	}}
	l.watched = &inventory{
		hasty: true,
		list: func(ctx context.Context) ([]engine.Container,
			error) {
			return agent.engines.Ask(ctx, agent.watched)
		},
		age: func() time.Duration {
			if l.watching.Load() {
				return watchedAge
			}
			return 0
		},
	}
	return l
}

// here lists this node's guests.
func (l *locations) here() []*api.Location {
	containers, err := l.all.get(l.agent.ctx)
	if err != nil {
		l.agent.log.Warn("list of containers", "error", err)
		return nil
	}
	guests := l.bridgedHere()
	for _, container := range containers {
		address := container.Definition.Network.Address
		if container.PID == 0 || !container.Definition.Network.Pooled() || l.agent.atHome(address) ||
			l.left(container.Definition.ID) {
			continue
		}
		guests = append(guests, &api.Location{
			Address: address.String(), Container: container.Definition.ID, Node: l.agent.self.Name,
		})
	}
	return guests
}

// heard takes a peer's list of its guests.
func (l *locations) heard(node string, guests []*api.Location) {
	own, err := l.own()
	if err != nil {
		l.agent.log.Warn("list of containers", "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for address := range own {
		delete(l.away, address)
	}
	now, onBridges := map[netip.Addr]bool{}, map[netip.Addr]string{}
	for _, guest := range guests {
		address, err := netip.ParseAddr(guest.Address)
		if err != nil {
			continue
		}
		if _, err := l.agent.network.Home(address); err != nil { // not of the pool
			onBridges[address] = guest.Container
			continue
		}
		now[address] = true
		l.agent.kept.Elsewhere(guest.Container, node)
		if !own[address] && !l.moving(guest.Container) && l.plausible(address, guest.Container) {
			l.learn(address, place{node: node, container: guest.Container})
		}
	}
	l.heardBridged(node, onBridges)
	for address, at := range l.away {
		if at.node == node && !now[address] && !l.moving(at.container) {
			l.forget(address)
		}
	}
}

func (l *locations) learn(address netip.Addr, at place) {
	if l.away[address] == at {
		return
	}
	if err := l.agent.network.Route(address, network.Via(at.node)); err != nil {
		l.agent.log.Warn("route to a container", "address", address, "node", at.node, "error", err)
		return
	}
	l.away[address] = at
}

// movedTo notes where a migration has set the route of a container that was here. That node may
// never tell of it as its guest: the container may have moved on, or ended, before the next hello.
func (l *locations) movedTo(node string, definition engine.Definition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away[definition.Network.Address] = place{node: node, container: definition.ID}
}

// forget drops the shortcut to a container that is no longer where it was. At home the route stays:
// there it is the only one, and the migration that moves the container sets it. The place stays,
// too, with the time: see mayRelease.
func (l *locations) forget(address netip.Addr) {
	if l.agent.atHome(address) {
		if at := l.away[address]; at.left.IsZero() {
			at.left = time.Now()
			l.away[address] = at
		}
		return
	}
	delete(l.away, address)
	if err := l.agent.network.Unroute(address); err != nil {
		l.agent.log.Warn("route to a container", "address", address, "error", err)
	}
}

// dropNode forgets where containers are that were at a node which has been removed.
func (l *locations) dropNode(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for address, at := range l.away {
		if at.node == node && !l.moving(at.container) {
			l.forget(address)
		}
	}
}

// own are the addresses of the containers on this node: where they are nobody else has to say.
func (l *locations) own() (map[netip.Addr]bool, error) {
	containers, err := l.withAddress.get(l.agent.ctx)
	if err != nil {
		return nil, err
	}
	own := map[netip.Addr]bool{}
	for _, have := range containers {
		own[have.Definition.Network.Address] = true
	}
	return own, nil
}

// moving tells whether a migration on this node says where a container is.
func (l *locations) moving(container string) bool { return l.agent.moves.moving(container) }

// left tells whether a container that is still on this node runs at another one: its memory
// follows, or its end here is on its way. Who went on sending here would have its packets take the
// link that the memory needs.
func (l *locations) left(container string) bool {
	moving := l.agent.moves.of(container)
	return moving != nil && moving.tracker.Spec.Side == migration.Source &&
		moving.record().State == migration.Committed
}

// plausible refuses a guest with an address that this node has not given to it.
func (l *locations) plausible(address netip.Addr, container string) bool {
	return !l.agent.atHome(address) || l.agent.leaseOf(address) == container
}

// mayRelease tells whether a node may say that a container is no more: no other one is known to
// have it. A container may have moved on and ended before its last node told of it.
func (l *locations) mayRelease(node string, address netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.away[address]
	unclaimed := !at.left.IsZero() && time.Since(at.left) > unclaimedFor
	return !known || at.node == node || unclaimed
}

// elsewhere tells whether another node is known to have a container.
func (l *locations) elsewhere(address netip.Addr, container string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away[address].container == container
}

// released forgets a container that is no more.
func (l *locations) released(address netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.away, address)
}

// leaseOf is the container to which this node has given an address; empty if to none.
func (a *Agent) leaseOf(address netip.Addr) string {
	for _, lease := range a.network.Leases() {
		if lease.Address == address {
			return lease.Container
		}
	}
	return ""
}
