package location

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Config of Locations.
type Config struct {
	Self    string // name of this node
	Lists   Lists
	Leases  Leases
	Network Network
	Moves   Moves
	// Reaches reports whether another node can be reached.
	Reaches func(node string) bool
	// Heard is called with each container of which another node says that it lives there.
	Heard func(container, node string)
	Log   *slog.Logger
}

// Lists are the containers of this node. See inventory.Lists.
type Lists interface {
	All(ctx context.Context) ([]engine.Container, error)
	WithAddresses(ctx context.Context) ([]engine.Container, error)
}

// Leases are the addresses of this node. See lease.Leases.
type Leases interface {
	AtHome(address netip.Addr) bool
	Of(address netip.Addr) (container string)
}

// Network has the routes. See network.Network.
type Network interface {
	Home(address netip.Addr) (number int, err error)
	Route(address netip.Addr, to network.Destination) error
	Unroute(address netip.Addr) error
	BridgedPlaces() []network.BridgedPlace
	ForgetBridged(address netip.Addr) error
}

// Locations are the places of containers that live away from their home: each node tells the others
// of its guests, so that packets need not take the way by the home node. It is a shortcut: without
// it they still arrive.
type Locations struct {
	ctx    context.Context //nolint:containedctx // The life of the node: greetings have none of their own.
	config Config

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

// New has heard of no container. ctx is the life of the node.
func New(ctx context.Context, config Config) *Locations {
	return &Locations{
		ctx: ctx, config: config,
		away: map[netip.Addr]place{}, missed: map[netip.Addr]int{}, claims: map[netip.Addr]int{},
	}
}

// Guests lists this node's guests, for other nodes.
func (l *Locations) Guests() []*api.Location {
	containers, err := l.config.Lists.All(l.ctx)
	if err != nil {
		l.config.Log.Warn("list of containers", "error", err)
		return nil
	}
	guests := l.bridgedHere()
	for _, container := range containers {
		address := container.Definition.Network.Address
		if container.PID == 0 || !container.Definition.Network.Pooled() || l.config.Leases.AtHome(address) ||
			l.config.Moves.Departed(container.Definition.ID) {
			continue
		}
		guests = append(guests, &api.Location{
			Address: address.String(), Container: container.Definition.ID, Node: l.config.Self,
		})
	}
	return guests
}

// HearGuests takes a peer's list of its guests.
func (l *Locations) HearGuests(node string, guests []*api.Location) {
	own, err := l.own()
	if err != nil {
		l.config.Log.Warn("list of containers", "error", err)
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
		if _, err := l.config.Network.Home(address); err != nil { // not of the pool
			onBridges[address] = guest.Container
			continue
		}
		now[address] = true
		l.config.Heard(guest.Container, node)
		if !own[address] && !l.config.Moves.Moving(guest.Container) && l.plausible(address, guest.Container) {
			l.learn(address, place{node: node, container: guest.Container})
		}
	}
	l.heardBridged(node, onBridges)
	for address, at := range l.away {
		if at.node == node && !now[address] && !l.config.Moves.Moving(at.container) {
			l.forget(address)
		}
	}
}

func (l *Locations) learn(address netip.Addr, at place) {
	if l.away[address] == at {
		return
	}
	if err := l.config.Network.Route(address, network.Via(at.node)); err != nil {
		l.config.Log.Warn("route to a container", "address", address, "node", at.node, "error", err)
		return
	}
	l.away[address] = at
}

// movedTo notes where a migration has set the route of a container that was here. That node may
// never tell of it as its guest: the container may have moved on, or ended, before the next hello.
func (l *Locations) movedTo(node string, definition engine.Definition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away[definition.Network.Address] = place{node: node, container: definition.ID}
}

// Left notes that a migration has moved a container from here to a node. The way to a container that has
// come home is forgotten: packets take it anyway. The way to another node is forgotten when that node no
// longer has the container.
func (l *Locations) Left(to identity.Node, definition engine.Definition) error {
	address := definition.Network.Address
	if !definition.Network.Pooled() {
		return nil
	}
	home, err := l.config.Network.Home(address)
	if err != nil {
		return err
	}
	if home != to.Number {
		l.movedTo(to.Name, definition)
		return nil
	}
	return l.config.Network.Unroute(address)
}

// forget drops the shortcut to a container that is no longer where it was. At home the route stays:
// there it is the only one, and the migration that moves the container sets it. The place stays,
// too, with the time: see MayRelease.
func (l *Locations) forget(address netip.Addr) {
	if l.config.Leases.AtHome(address) {
		if at := l.away[address]; at.left.IsZero() {
			at.left = time.Now()
			l.away[address] = at
		}
		return
	}
	delete(l.away, address)
	if err := l.config.Network.Unroute(address); err != nil {
		l.config.Log.Warn("route to a container", "address", address, "error", err)
	}
}

// DropNode forgets where containers are that were at a node which has been removed.
func (l *Locations) DropNode(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for address, at := range l.away {
		if at.node == node && !l.config.Moves.Moving(at.container) {
			l.forget(address)
		}
	}
}

// own are the addresses of the containers on this node: where they are nobody else has to say.
func (l *Locations) own() (map[netip.Addr]bool, error) {
	containers, err := l.config.Lists.WithAddresses(l.ctx)
	if err != nil {
		return nil, err
	}
	own := map[netip.Addr]bool{}
	for _, have := range containers {
		own[have.Definition.Network.Address] = true
	}
	return own, nil
}

// plausible refuses a guest with an address that this node has not given to it.
func (l *Locations) plausible(address netip.Addr, container string) bool {
	return !l.config.Leases.AtHome(address) || l.config.Leases.Of(address) == container
}

// MayRelease reports whether a node may say that a container is no more: no other one is known to
// have it. A container may have moved on and ended before its last node told of it.
func (l *Locations) MayRelease(node string, address netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.away[address]
	unclaimed := !at.left.IsZero() && time.Since(at.left) > unclaimedFor
	return !known || at.node == node || unclaimed
}

// Elsewhere reports whether another node is known to have a container.
func (l *Locations) Elsewhere(address netip.Addr, container string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away[address].container == container
}

// Released forgets a container that is no more.
func (l *Locations) Released(address netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.away, address)
}
