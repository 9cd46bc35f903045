package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/hold"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// takeTable chooses the routing table of a hold's device: the one derived from the address, or the next free
// one.
func (n *Network) takeTable(t *tun) {
	const all = 1<<24 - 1
	bytes := t.ip.As4()
	at := int(bytes[1])<<16 + int(bytes[2])<<8 + int(bytes[3])
	for n.tables[rtnl.HoldTables+at] != nil {
		at = (at + 1) & all // always ends: a node has fewer devices than this
	}
	t.table = rtnl.HoldTables + at
	n.tables[t.table] = t
}

// Destination says where an address is: Local or Via.
type Destination = hold.Destination

// Local is the container with this ID, attached to this node.
func Local(id string) Destination { return Destination{Container: id} }

// Via is the peer with this name.
func Via(peer string) Destination { return Destination{Peer: peer} }

// elsewhere reports whether there is no address. Then the container's network does not belong to this
// package, which does nothing.
func elsewhere(ip netip.Addr) bool { return !ip.IsValid() }

// known refuses an address that is neither in the pool nor that of a container on a bridge.
func (n *Network) known(ip netip.Addr) error {
	if n.bridged[ip] != nil {
		return nil
	}
	_, err := n.pool.Home(ip)
	return err
}

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
	if n.bridged[ip] != nil {
		return n.forgetBridged(ip)
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
	return n.unplug(ip)
}

// switchTo sets the address's route in the main table, and plugs or unplugs the container.
func (n *Network) switchTo(ip netip.Addr, to Destination) error {
	if one := n.bridged[ip]; one != nil {
		return n.switchBridged(one, to)
	}
	route, err := n.routeTo(rtnl.HostNet(ip), to, unix.RT_TABLE_MAIN, ip)
	if err != nil {
		return fmt.Errorf("route %s to %s: %w", ip, to, err)
	}
	if to.Container != "" {
		if err := n.plug(ip, to.Container); err != nil {
			return fmt.Errorf("plug in %s: %w", to, err)
		}
	}
	if err := n.links.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s to %s: %w", ip, to, err)
	}
	if to.Container == "" {
		return n.unplug(ip)
	}
	return nil
}

// routeTo returns a route to the address's destination, after checking that the destination exists.
func (n *Network) routeTo(prefix *net.IPNet, to Destination, table int, ip netip.Addr) (*netlink.Route,
	error) {
	if err := n.known(ip); err != nil {
		return nil, err
	}
	if to.Container == "" {
		for _, peer := range n.tunnel.Peers() {
			if peer.Name == to.Peer && to.Peer != "" {
				return n.routes.Via(prefix, peer.Number, table), nil
			}
		}
		return nil, fmt.Errorf("%w: %q", ErrUnknownPeer, to.Peer)
	}
	attached, ok := n.containers[to.Container]
	if !ok || attached.address.IP != ip {
		return nil, ErrNotAttached
	}
	link, err := n.links.LinkByName(attached.device)
	if rtnl.IsLinkNotFound(err) {
		return nil, fmt.Errorf("device %s: %w", attached.device, ErrEnded)
	}
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", attached.device, err)
	}
	route := n.routes.Route(prefix, table)
	// With the container itself as gateway, a hold's default route uses the container's permanent neighbour
	// entry, too.
	route.LinkIndex, route.Gw, route.Flags = link.Attrs().Index, net.IP(ip.AsSlice()),
		int(netlink.FLAG_ONLINK)
	return route, nil
}

// plug lets a container send. If the container's home is another node, packets to hosts outside go home.
func (n *Network) plug(ip netip.Addr, id string) error {
	attached := n.containers[id]
	err := n.unblock(id, attached)
	if attached.bridged {
		return err // connections that it opens leave by this node
	}
	if err := errors.Join(err, n.filter.Allow(attached.device, ip, true)); err != nil {
		return err
	}
	number, err := n.pool.Home(ip)
	if err != nil || number == n.config.NodeNumber {
		return err
	}
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Src = rtnl.PriorityHome, rtnl.PeerTable(number), rtnl.HostNet(ip)
	return n.routes.AddRules(rule)
}

// unplug undoes plug for all containers here that have the address.
func (n *Network) unplug(ip netip.Addr) error {
	for _, attached := range n.containers {
		if attached.address.IP == ip && !attached.bridged {
			if err := n.filter.Allow(attached.device, ip, false); err != nil {
				return err
			}
		}
	}
	return n.routes.RemoveRules(func(rule netlink.Rule) bool {
		return rule.Priority == rtnl.PriorityHome && rule.Src != nil && rule.Src.IP.Equal(ip.AsSlice())
	})
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
	if err := n.known(ip); err != nil {
		return err
	}
	blocked := make(chan error, 1)
	go func() { blocked <- n.blockAll(ip) }() // both take effect at once, and then take some time to return
	return errors.Join(n.unplug(ip), <-blocked)
}

// EndQuiesce ends Quiesce for a container that resumes here. It is idempotent.
func (n *Network) EndQuiesce(ip netip.Addr) error {
	if elsewhere(ip) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, attached := range n.containers {
		if attached.address.IP == ip {
			return n.plug(ip, id)
		}
	}
	return nil
}
