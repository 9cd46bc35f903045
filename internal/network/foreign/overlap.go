package foreign

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// ErrInUse means that a network is already in use on this machine.
var ErrInUse = pool.ErrInUse

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
func CheckFree(path string, prefix netip.Prefix, devices ...string) error {
	uses, err := usesIn(path, prefix, devices)
	if err != nil {
		return err
	}
	return inUse(prefix, uses)
}

// CheckPool refuses a pool that would take addresses from other programs. The agent accepts routes to more
// than the pool, which a VPN may have added since: the agent's own routes are more specific, so both work.
func CheckPool(path string, prefix netip.Prefix) error {
	uses, err := usesIn(path, prefix, nil)
	if err != nil {
		return err
	}
	uses = slices.DeleteFunc(uses, func(u use) bool { return u.wider })
	if err := inUse(prefix, uses); err != nil {
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
func usesIn(path string, prefix netip.Prefix, devices []string) ([]use, error) {
	ns, err := namespace.Open(path)
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
		own := group == pool.GroupContainer || group == pool.GroupTunnel || group == pool.GroupHold ||
			group == pool.GroupOverlay
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

// addressesIn lists these devices' addresses in a network.
func addressesIn(handle *netlink.Handle, prefix netip.Prefix, links map[int]netlink.Link) ([]use, error) {
	addresses, err := rtnl.AddressesOf(handle, nil, netlink.FAMILY_V4)
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
		to, ok := rtnl.PrefixOf(route.Dst)
		link := links[route.LinkIndex]
		if !ok || route.Table == unix.RT_TABLE_LOCAL || route.Protocol == pool.RouteProtocol ||
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
