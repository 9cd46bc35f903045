package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Priorities of our rules, in the order in which the kernel asks them, after its local table and before
// the main one.
const (
	priorityHold = 7440 + iota // what a hold sends goes to the hold's destination
	priorityPool               // containers and nodes: the main table, no other
	priorityDoor               // answers: the door by which the connection came in
	priorityHome               // all else of a container that is away from home: home
	priorityEnd
)

// routeProtocol marks our routes (RTPROT, linux/rtnetlink.h: values over 4 that nobody has registered
// are free).
const routeProtocol = 103

// Doors in packet and connection marks: the number of the node by which a connection came in.
const (
	doorShift = 16
	doorMask  = maxNodeNumber << doorShift
)

// Routing tables are numbered from these; only the owner of a number may use it, so they are out of the
// usual way.
const (
	peerTables = 0x67000000
	holdTables = 0x68000000
)

// peerTable is the routing table whose only route sends everything to a peer.
func peerTable(number int) int { return peerTables + number }

// takeTable finds a routing table for a hold: the one that the address names, or the next that no other has.
func (n *Network) takeTable(ip netip.Addr) int {
	const all = 1<<24 - 1
	bytes := ip.As4()
	at := int(bytes[1])<<16 + int(bytes[2])<<8 + int(bytes[3])
	for n.tables[holdTables+at] {
		at = (at + 1) & all // each hold has a device of the node, of which there are not so many
	}
	n.tables[holdTables+at] = true
	return holdTables + at
}

// Destination is where an address is: Local or Via.
type Destination struct {
	container string
	peer      string
}

// Local is the container of this id, attached to this node.
func Local(id string) Destination { return Destination{container: id} }

// Via is the peer of this name.
func Via(peer string) Destination { return Destination{peer: peer} }

// String says where.
func (d Destination) String() string {
	if d.container != "" {
		return "container " + d.container + " here"
	}
	return "node " + d.peer
}

// elsewhere tells of an address that is none: the network of that container is not this package's, and
// there is nothing to do for it here.
func elsewhere(ip netip.Addr) bool { return !ip.IsValid() }

// known refuses an address that is neither of the pool nor that of a container on a bridge.
func (n *Network) known(ip netip.Addr) error {
	if n.bridged[ip] != nil {
		return nil
	}
	_, err := n.config.home(ip)
	return err
}

// Route says where a container address is. Local plugs the container in: before, nothing that it sends
// leaves, and nothing reaches it. Via and Unroute unplug a container of this address that is still
// attached here, so nothing that happens to it from then on (it is killed, its timers run) can be heard
// outside.
func (n *Network) Route(ip netip.Addr, to Destination) error {
	if elsewhere(ip) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holding(ip) {
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
	if _, err := n.config.home(ip); err != nil {
		return err
	}
	if n.holding(ip) {
		return fmt.Errorf("forget the route of %s: %w; release the hold first", ip, ErrHeld)
	}
	if err := n.removeRoutes(isHostRoute(ip)); err != nil {
		return err
	}
	return n.unplug(ip)
}

// switchTo makes the address's route in the main table, and plugs or unplugs.
func (n *Network) switchTo(ip netip.Addr, to Destination) error {
	if one := n.bridged[ip]; one != nil {
		return n.switchBridged(one, to)
	}
	route, err := n.routeTo(hostNet(ip), to, unix.RT_TABLE_MAIN, ip)
	if err != nil {
		return fmt.Errorf("route %s to %s: %w", ip, to, err)
	}
	if to.container != "" {
		if err := n.plug(ip, to.container); err != nil {
			return fmt.Errorf("plug in %s: %w", to, err)
		}
	}
	if err := n.links.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s to %s: %w", ip, to, err)
	}
	if to.container == "" {
		return n.unplug(ip)
	}
	return nil
}

// routeTo is a route for the address's destination, after checking that there is one.
func (n *Network) routeTo(prefix *net.IPNet, to Destination, table int, ip netip.Addr) (*netlink.Route, error) {
	if err := n.known(ip); err != nil {
		return nil, err
	}
	if to.container == "" {
		for _, peer := range n.peers {
			if peer.Name == to.peer && to.peer != "" {
				return n.via(prefix, peer.Number, table), nil
			}
		}
		return nil, fmt.Errorf("%w: %q", ErrUnknownPeer, to.peer)
	}
	attached, ok := n.containers[to.container]
	if !ok || attached.address.IP != ip {
		return nil, ErrNotAttached
	}
	link, err := n.links.LinkByName(attached.device)
	if isLinkNotFound(err) {
		return nil, fmt.Errorf("device %s: %w", attached.device, ErrEnded)
	}
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", attached.device, err)
	}
	route := n.route(prefix, table)
	// With the container itself as gateway its permanent neighbour entry is used also by a hold's
	// default route.
	route.LinkIndex, route.Gw, route.Flags = link.Attrs().Index, net.IP(ip.AsSlice()), int(netlink.FLAG_ONLINK)
	return route, nil
}

// via is a route through the tunnel to a peer.
func (n *Network) via(prefix *net.IPNet, number, table int) *netlink.Route {
	route := n.route(prefix, table)
	route.LinkIndex, route.Gw = n.tunnel.Attrs().Index, net.IP(n.config.nodeAddress(number).AsSlice())
	route.Flags = int(netlink.FLAG_ONLINK)
	return route
}

// route with what all our routes have in common. The source is the node's address in the pool, so that
// containers everywhere know the way back to the node.
func (n *Network) route(prefix *net.IPNet, table int) *netlink.Route {
	return &netlink.Route{Dst: prefix, Table: table, Protocol: routeProtocol, Src: net.IP(n.NodeAddress().AsSlice())}
}

// plug lets a container send, and sends what it sends to strangers home if its home is another node.
func (n *Network) plug(ip netip.Addr, id string) error {
	if err := errors.Join(n.unmuzzle(id, n.containers[id]), n.allow(n.containers[id], true)); err != nil {
		return err
	}
	if n.containers[id].bridged {
		return nil // what it opens leaves by this node
	}
	number, err := n.config.home(ip)
	if err != nil || number == n.config.NodeNumber {
		return err
	}
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Src = priorityHome, peerTable(number), hostNet(ip)
	return n.addRules(rule)
}

// unplug undoes plug for whichever container here has the address.
func (n *Network) unplug(ip netip.Addr) error {
	for _, attached := range n.containers {
		if attached.address.IP == ip {
			if err := n.allow(attached, false); err != nil {
				return err
			}
		}
	}
	return n.removeRules(func(rule netlink.Rule) bool {
		return rule.Priority == priorityHome && rule.Src != nil && rule.Src.IP.Equal(ip.AsSlice())
	})
}

// Silence lets nothing that the container of this address sends arrive anywhere, from now until
// EndSilence, or until Route or Release says where it is. It is for a container that is frozen to be
// dumped: its kernel still repeats what was not acknowledged. What leaves has timestamps (RFC 7323) that
// are younger than those with which its sockets go on elsewhere, and the peers would take all that
// follows for old duplicates (section 5.3, PAWS) until the clocks have caught up. What stays within the
// container would make the dump of a connection's one end older than that of the other: a sender that
// goes on elsewhere takes acknowledgements of what it has not sent, as far as it knows, for invalid (RFC
// 9293, section 3.10.7.4), and the connection stands still for good.
func (n *Network) Silence(ip netip.Addr) error {
	if elsewhere(ip) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.known(ip); err != nil {
		return err
	}
	muzzled := make(chan error, 1)
	go func() { muzzled <- n.muzzleAll(ip) }() // each of the two takes effect before it returns, and waits some time then
	return errors.Join(n.unplug(ip), <-muzzled)
}

// EndSilence lets a container that goes on here be heard again. Doing nothing is success.
func (n *Network) EndSilence(ip netip.Addr) error {
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

// doorRule sends answers marked with a door to a table.
func (n *Network) doorRule(number, table int) *netlink.Rule {
	mask := uint32(doorMask)
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Mark, rule.Mask = priorityDoor, table, uint32(number)<<doorShift, &mask
	return rule
}

// addRules makes rules that are not there yet.
func (n *Network) addRules(rules ...*netlink.Rule) error {
	for _, rule := range rules {
		if err := n.links.RuleAdd(rule); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("add routing rule (%s): %w", rule, err)
		}
	}
	return nil
}

// removeRules removes those of our rules that match.
func (n *Network) removeRules(match func(netlink.Rule) bool) error {
	rules, err := n.links.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list routing rules: %w", err)
	}
	for _, rule := range rules {
		if rule.Priority < priorityHold || rule.Priority >= priorityEnd || !match(rule) {
			continue
		}
		if err := n.links.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove routing rule (%s): %w", rule, err)
		}
	}
	return nil
}

// removeRoutes removes those of our routes, in all tables, that match.
func (n *Network) removeRoutes(match func(netlink.Route) bool) error {
	routes, err := n.listRoutes()
	if err != nil {
		return err
	}
	for _, route := range routes {
		if !match(route) {
			continue
		}
		if err := n.links.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route %s: %w", route, err)
		}
	}
	return nil
}

// listRoutes finds our routes in all tables.
func (n *Network) listRoutes() ([]netlink.Route, error) {
	filter := &netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_UNSPEC}
	routes, err := n.links.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

// isHostRoute matches an address's own route in the main table.
func isHostRoute(ip netip.Addr) func(netlink.Route) bool {
	return func(route netlink.Route) bool {
		return route.Table == unix.RT_TABLE_MAIN && route.Dst != nil && route.Dst.String() == hostNet(ip).String()
	}
}

// allAddresses is the default route's prefix.
func allAddresses() *net.IPNet { return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)} }
