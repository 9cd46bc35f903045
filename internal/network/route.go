package network

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/hold"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// Destination says where an address is: Local or Via.
type Destination = hold.Destination

// Local is the container with this ID, attached to this node.
func Local(id string) Destination { return Destination{Container: id} }

// Via is the peer with this name.
func Via(peer string) Destination { return Destination{Peer: peer} }

// elsewhere reports whether there is no address. Then the container's network does not belong to this
// package, which does nothing.
func elsewhere(ip netip.Addr) bool { return !ip.IsValid() }

// Route sets where a container address is. Local plugs the container in: before that, nothing reaches the
// container, and nothing that it sends leaves. Via and Unroute unplug a container with this address that is
// still attached here, so nothing that happens to it later (it is killed, its timers run) is visible
// outside.
func (n *Network) Route(ip netip.Addr, to Destination) error {
	if elsewhere(ip) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holds.Holding(ip) {
		return fmt.Errorf("route %s to %s: %w; release the hold instead", ip, to, ErrHeld)
	}
	return n.switchTo(ip, to)
}

// Unroute forgets where an address is: its packets go to its home, or to the blackhole if this is its home.
func (n *Network) Unroute(ip netip.Addr) error {
	if elsewhere(ip) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, is := n.records.at(ip); is {
		return n.onBridges.forgetBridged(ip)
	}
	if _, err := n.pool.Home(ip); err != nil {
		return err
	}
	if n.holds.Holding(ip) {
		return fmt.Errorf("forget the route of %s: %w; release the hold first", ip, ErrHeld)
	}
	if err := n.routes.RemoveRoutes(rtnl.IsHostRoute(ip)); err != nil {
		return err
	}
	return n.plugs.unplug(ip)
}

// switchTo sets the address's route in the main table, and plugs or unplugs the container.
func (n *Network) switchTo(ip netip.Addr, to Destination) error {
	if one, is := n.records.at(ip); is {
		return n.onBridges.switchBridged(&one, to)
	}
	route, err := n.plugs.routeTo(rtnl.HostNet(ip), to, unix.RT_TABLE_MAIN, ip)
	if err != nil {
		return fmt.Errorf("route %s to %s: %w", ip, to, err)
	}
	if to.Container != "" {
		if err := n.plugs.plug(ip, to.Container); err != nil {
			return fmt.Errorf("plug in %s: %w", to, err)
		}
	}
	if err := n.links.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s to %s: %w", ip, to, err)
	}
	if to.Container == "" {
		return n.plugs.unplug(ip)
	}
	return nil
}

// Quiesce blocks all packets sent by the container with this address, from now until EndQuiesce, or until
// Route or Release says where it is. It is for a container that is frozen to be dumped: its kernel still
// repeats unacknowledged packets. Packets that leave would have timestamps (RFC 7323) later than those with
// which the sockets resume elsewhere, and the peers would take all later packets for old duplicates
// (section 5.3, PAWS) until the clocks have caught up. Packets within the container would make the dump of
// one end of a connection older than that of the other: a sender that resumes elsewhere takes
// acknowledgements of data that, as far as it knows, it has not sent for invalid (RFC 9293, section
// 3.10.7.4), and the connection stalls for good.
func (n *Network) Quiesce(ip netip.Addr) error {
	if elsewhere(ip) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.plugs.known(ip); err != nil {
		return err
	}
	blocked := make(chan error, 1)
	// both take effect at once, and then take some time to return
	go func() { blocked <- n.containers.blockAll(ip) }()
	return errors.Join(n.plugs.unplug(ip), <-blocked)
}

// EndQuiesce ends Quiesce for a container that resumes here. It is idempotent.
func (n *Network) EndQuiesce(ip netip.Addr) error {
	if elsewhere(ip) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, attached := range n.containers.all {
		if attached.address.IP == ip {
			return n.plugs.plug(ip, id)
		}
	}
	return nil
}
