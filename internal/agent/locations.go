package agent

import (
	"net/netip"
	"sync"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
)

// locations are the places of containers that live away from their home: each node tells the others of its guests, so
// that packets need not take the way by the home node. It is a shortcut: without it they still arrive.
type locations struct {
	agent *Agent
	mu    sync.Mutex
	away  map[netip.Addr]string // node
}

func newLocations(agent *Agent) *locations {
	return &locations{agent: agent, away: map[netip.Addr]string{}}
}

// here lists this node's guests.
func (l *locations) here() []*api.Location {
	containers, err := l.agent.engine.List(l.agent.ctx)
	if err != nil {
		l.agent.log.Warn("list of containers", "error", err)
		return nil
	}
	var guests []*api.Location
	for _, container := range containers {
		address := container.Definition.Network.Address
		if container.PID == 0 || !address.IsValid() || l.agent.atHome(address) {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	now := map[netip.Addr]bool{}
	for _, guest := range guests {
		address, err := netip.ParseAddr(guest.Address)
		if err != nil || l.busy(address, guest.Container) {
			continue
		}
		now[address] = true
		if l.away[address] == node {
			continue
		}
		if err := l.agent.network.Route(address, network.Via(node)); err != nil {
			l.agent.log.Warn("route to a container", "address", address, "node", node, "error", err)
			continue
		}
		l.away[address] = node
	}
	for address, at := range l.away {
		if at == node && !now[address] {
			delete(l.away, address)
			l.forget(address)
		}
	}
}

// forget drops the shortcut to a container that is no longer where it was. At home the route stays: there it is the
// only one, and the migration that moves the container sets it.
func (l *locations) forget(address netip.Addr) {
	if l.agent.atHome(address) || l.busy(address, "") {
		return
	}
	if err := l.agent.network.Unroute(address); err != nil {
		l.agent.log.Warn("route to a container", "address", address, "error", err)
	}
}

// busy tells whether this node itself has to say where an address is: it has the container, or moves it.
func (l *locations) busy(address netip.Addr, container string) bool {
	if container != "" {
		if l.agent.moves.of(container) != nil {
			return true
		}
	}
	containers, err := l.agent.engine.List(l.agent.ctx)
	if err != nil {
		return true
	}
	for _, have := range containers {
		if have.Definition.Network.Address == address {
			return true
		}
	}
	return false
}
