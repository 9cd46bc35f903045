package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
)

// ErrInUse means that a network is already in use on this machine.
var ErrInUse = errors.New("is in use on this machine")

// everywhere is the prefix length up to which a route counts as a default route. Some VPNs divide the
// default route.
const everywhere = 4

// use is something on this machine that uses a network and does not belong to Godwit.
type use struct {
	what  string
	wider bool // the route leads to more than the network; a narrower route takes a part of it away
}

// CheckFree refuses a network if something else on this machine has a route into it or an address in it.
// CheckFree ignores the given devices.
func CheckFree(namespace string, prefix netip.Prefix, devices ...string) error {
	uses, err := usesIn(namespace, prefix, devices)
	if err != nil {
		return err
	}
	return inUse(prefix, uses)
}

// checkPool refuses a pool that would take addresses from other programs. The agent accepts routes to more
// than the pool, which a VPN may have added since: the agent's own routes are more specific, so both work.
func (n *Network) checkPool() error {
	uses, err := usesIn(n.config.Namespace, n.config.Pool, nil)
	if err != nil {
		return err
	}
	uses = slices.DeleteFunc(uses, func(u use) bool { return u.wider })
	if err := inUse(n.config.Pool, uses); err != nil {
		return fmt.Errorf("pool of container addresses: %w: change that network; or, if no container of "+
			"the cluster must be kept, give the cluster another pool: godwit node init --force --pool, "+
			"and godwit node join --force on the other nodes", err)
	}
	return nil
}

func inUse(prefix netip.Prefix, uses []use) error {
	if len(uses) == 0 {
		return nil
	}
	var whats []string
	for _, u := range uses {
		whats = append(whats, u.what)
	}
	const most = 3
	if more := len(whats) - most; more > 0 {
		whats = append(whats[:most], fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("%s %w: %s", prefix, ErrInUse, strings.Join(whats, ", "))
}

// usesIn lists the uses of a network in a network namespace, except Godwit's own.
func usesIn(namespace string, prefix netip.Prefix, devices []string) ([]use, error) {
	ns, err := openNamespace(namespace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }()
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer handle.Close()
	all, err := dump.Whole(handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	links := map[int]netlink.Link{}
	for _, link := range all {
		group := link.Attrs().Group
		own := group == groupContainer || group == groupTunnel || group == groupHold || group == groupOverlay
		if !own && !slices.Contains(devices, link.Attrs().Name) {
			links[link.Attrs().Index] = link
		}
	}
	uses, err := addressesIn(handle, prefix, links)
	if err != nil {
		return nil, err
	}
	routes, err := routesInto(handle, prefix, links)
	return append(uses, routes...), err
}

// addressesOf lists the addresses of a device; of all devices if link is nil.
func addressesOf(handle *netlink.Handle, link netlink.Link, family int) ([]netlink.Addr, error) {
	return dump.Whole(func() ([]netlink.Addr, error) { return handle.AddrList(link, family) })
}

// addressesIn lists these devices' addresses in a network.
func addressesIn(handle *netlink.Handle, prefix netip.Prefix, links map[int]netlink.Link) ([]use, error) {
	addresses, err := addressesOf(handle, nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var uses []use
	for _, address := range addresses {
		ip, _ := netip.AddrFromSlice(address.IP)
		if link := links[address.LinkIndex]; link != nil && prefix.Contains(ip.Unmap()) {
			uses = append(uses, use{what: "address " + address.IPNet.String() + " of " + link.Attrs().Name})
		}
	}
	return uses, nil
}

// routesInto lists other programs' routes to addresses of a network, in all tables: rules of other programs
// may come before ours.
func routesInto(handle *netlink.Handle, prefix netip.Prefix, links map[int]netlink.Link) ([]use, error) {
	routes, err := dump.Whole(func() ([]netlink.Route, error) {
		return handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var uses []use
	for _, route := range routes {
		to, ok := prefixOf(route.Dst)
		link := links[route.LinkIndex]
		if !ok || route.Table == unix.RT_TABLE_LOCAL || route.Protocol == routeProtocol ||
			!to.Overlaps(prefix) || to.Bits() <= everywhere ||
			route.LinkIndex != 0 && link == nil || toContainer(to, link) {
			continue
		}
		wider := to.Bits() < prefix.Bits()
		if wider && route.Type != unix.RTN_UNICAST { // such a route makes other addresses unreachable
			continue
		}
		uses = append(uses, use{what: describeRoute(to, route, link), wider: wider})
	}
	return uses, nil
}

// toContainer reports whether a route is one that LXC makes for a container with an address of the pool,
// before the agent takes it over.
func toContainer(to netip.Prefix, link netlink.Link) bool {
	return to.IsSingleIP() && link != nil && link.Type() == "veth"
}

func describeRoute(to netip.Prefix, route netlink.Route, link netlink.Link) string {
	text := "route " + to.String()
	if route.Type != unix.RTN_UNICAST {
		text += " (to nowhere)"
	}
	if route.Gw != nil {
		text += " via " + route.Gw.String()
	}
	if link != nil {
		text += " dev " + link.Attrs().Name
	}
	return text
}

// prefixOf converts from the netlink library's type; nil is the default route.
func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), bits), ok
}

// addBlackhole makes a route to nowhere. It replaces the route of an earlier process, but never another
// program's.
func (n *Network) addBlackhole(prefix netip.Prefix) error {
	route := n.route(ipNet(prefix), unix.RT_TABLE_MAIN)
	route.Type = unix.RTN_BLACKHOLE
	err := n.links.RouteAdd(route)
	if errors.Is(err, unix.EEXIST) {
		var ours []netlink.Route
		ours, err = n.listRoutes()
		is := func(r netlink.Route) bool {
			to, ok := prefixOf(r.Dst)
			return ok && to == prefix && r.Table == unix.RT_TABLE_MAIN && r.Type == unix.RTN_BLACKHOLE
		}
		switch {
		case err != nil:
		case slices.ContainsFunc(ours, is):
			err = n.links.RouteReplace(route)
		default:
			err = fmt.Errorf("%s %w: there is another route", prefix, ErrInUse)
		}
	}
	if err != nil {
		return fmt.Errorf("make the blackhole route of %s: %w", prefix, err)
	}
	return nil
}
