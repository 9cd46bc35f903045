package nsstate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
)

// Kinds of findings beside filterRules.
const (
	devices   = "devices"
	addresses = "addresses"
	routes    = "routes"
	rules     = "routing rules"
	neighbour = "permanent neighbours"
	traffic   = "traffic control"
	ipsec     = "IPsec policies and keys"
)

// network is the contents of a namespace, except rules of the packet filter and settings.
type network struct {
	links     []netlink.Link
	addresses []netlink.Addr
	routes    []netlink.Route
	rules     []netlink.Rule
	neighbour []netlink.Neigh // permanent ones
	traffic   []netlink.Qdisc
	ipsec     bool
}

// read reads all of these lists.
func read(ctx context.Context, ns netns.NsHandle) (network, error) {
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return network{}, err
	}
	defer handle.Close()
	var n network
	anyTable := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	for _, list := range []func() (err error){
		func() (err error) { n.links, err = handle.LinkList(); return err },
		func() (err error) { n.addresses, err = handle.AddrList(nil, netlink.FAMILY_ALL); return err },
		func() (err error) {
			n.routes, err = handle.RouteListFiltered(netlink.FAMILY_ALL, anyTable, netlink.RT_FILTER_TABLE)
			return err
		},
		func() (err error) { n.rules, err = handle.RuleList(netlink.FAMILY_ALL); return err },
		func() (err error) { n.neighbour, err = permanent(ctx, ns); return err },
		func() (err error) { n.traffic, err = handle.QdiscList(nil); return err },
		func() (err error) { n.ipsec, err = hasIPsec(ctx, ns); return err },
	} {
		err := list()
		for tries := 0; errors.Is(err, netlink.ErrDumpInterrupted) && tries < maxTries; tries++ {
			err = list()
		}
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return n, err // otherwise a list that keeps changing was read incompletely
		}
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
	}
	return n, nil
}

// linksAndRoutes finds the objects in these lists that the engine has not made.
func (f Fresh) linksAndRoutes(
	ctx context.Context, ns netns.NsHandle, expected Expected,
) ([]Finding, error) {
	if long, err := tooLong(ctx, ns, networkLists); err != nil || len(long) > 0 {
		return long, err
	}
	n, err := read(ctx, ns)
	if err != nil {
		return nil, err
	}
	if !expected.Gateway.IsValid() {
		if expected.gateways, err = ownAddresses(); err != nil {
			return nil, err
		}
	}
	known, found := f.devicesOf(n, expected.Device)
	found = append(found, addressesOf(n, known, expected)...)
	found = append(found, routesOf(n, known, expected)...)
	for _, rule := range n.rules {
		if !f.rules[ruleName(rule)] {
			found = append(found, made(rules, ruleName(rule)))
		}
	}
	found = append(found, neighboursOf(n, known, expected)...)
	for _, one := range n.traffic {
		name, is := known[one.Attrs().LinkIndex]
		if is && one.Attrs().Handle != 0 { // the kernel's own have no handle
			what := fmt.Sprintf("traffic control %s of device %s", one.Type(), name)
			found = append(found, made(traffic, what))
		}
	}
	if n.ipsec {
		found = append(found, made(ipsec, "IPsec"))
	}
	return found, nil
}

// devicesOf returns the names of the expected devices, by index, and finds the others.
func (f Fresh) devicesOf(n network, own string) (map[int]string, []Finding) {
	known := map[int]string{}
	var found []Finding
	for _, link := range n.links {
		name := link.Attrs().Name
		if f.devices[name] || name == own {
			known[link.Attrs().Index] = name
			continue
		}
		found = append(found, made(devices, fmt.Sprintf("device %s (%s)", name, link.Type())))
	}
	return known, found
}

// addressesOf finds addresses of known devices; those of another device are part of that finding.
func addressesOf(n network, known map[int]string, expected Expected) []Finding {
	var found []Finding
	own := false
	for _, one := range n.addresses {
		name, is := known[one.LinkIndex]
		ip, _ := netip.AddrFromSlice(one.IP)
		ip = ip.Unmap()
		switch {
		case !is:
		case name == expected.Device && ip == expected.Address:
			own = true
		case name == "lo" && (ip == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || ip == netip.IPv6Loopback()):
		case ip.Is6() && (ip.IsLinkLocalUnicast() || one.ValidLft != forever): // the kernel's own
		default:
			found = append(found, made(addresses, fmt.Sprintf("address %s of device %s", one.IPNet, name)))
		}
	}
	if expected.Gateway.IsValid() && !own {
		what := fmt.Sprintf("address %s of device %s", expected.Address, expected.Device)
		found = append(found, removed(what))
	}
	return found
}

// forever is the lifetime of an address that no router has announced.
const forever = 1<<32 - 1

// routesOf finds routes of known devices, and routes without a device.
func routesOf(n network, known map[int]string, expected Expected) []Finding {
	var found []Finding
	leaves := false
	for _, route := range n.routes {
		name, is := known[route.LinkIndex]
		switch {
		case isKernels(route) || !is && route.LinkIndex != 0:
		case expected.isEngines(route, name):
			leaves = leaves || everywhere(route.Dst)
		default:
			found = append(found, made(routes, routeName(route, name)))
		}
	}
	if expected.Gateway.IsValid() && !leaves {
		found = append(found, removed(fmt.Sprintf("default route by %s", expected.Gateway)))
	}
	return found
}

// neighboursOf finds permanent hardware addresses. Godwit makes the gateway's.
func neighboursOf(n network, known map[int]string, expected Expected) []Finding {
	var found []Finding
	for _, one := range n.neighbour {
		name, is := known[one.LinkIndex]
		ip, _ := netip.AddrFromSlice(one.IP)
		if is && ip.Unmap() != expected.Gateway {
			found = append(found, made(neighbour, fmt.Sprintf("neighbour %s of device %s", one.IP, name)))
		}
	}
	return found
}

// isKernels reports whether the kernel made a route, for an address or because a router announced it. Older
// kernels do not mark the multicast route as theirs.
func isKernels(route netlink.Route) bool {
	multicast := route.Table == unix.RT_TABLE_LOCAL && route.Dst != nil && route.Dst.String() == "ff00::/8"
	return route.Protocol == unix.RTPROT_KERNEL || route.Protocol == unix.RTPROT_RA || multicast
}

// isEngines reports whether a route is the default route that the engine gives a container, or leads to the
// gateway. LXC's gateway is not in a network of the interface.
func (e Expected) isEngines(route netlink.Route, device string) bool {
	if route.Table != unix.RT_TABLE_MAIN || device != e.Device || route.Type != unix.RTN_UNICAST {
		return false
	}
	to := route.Gw
	if !everywhere(route.Dst) {
		ones, bits := route.Dst.Mask.Size()
		if to != nil || ones != bits {
			return false
		}
		to = route.Dst.IP
	}
	gateway, _ := netip.AddrFromSlice(to)
	gateway = gateway.Unmap()
	if e.Gateway.IsValid() {
		return gateway == e.Gateway
	}
	return slices.Contains(e.gateways, gateway)
}

func everywhere(to *net.IPNet) bool {
	if to == nil {
		return true
	}
	ones, _ := to.Mask.Size()
	return ones == 0 && to.IP.IsUnspecified()
}

// routeTypes names the types of routes that lead nowhere.
var routeTypes = map[int]string{
	unix.RTN_BLACKHOLE: "blackhole ", unix.RTN_UNREACHABLE: "unreachable ", unix.RTN_PROHIBIT: "prohibiting ",
	unix.RTN_THROW: "throwing ", unix.RTN_LOCAL: "local ",
}

func routeName(route netlink.Route, device string) string {
	to := "default"
	if !everywhere(route.Dst) {
		to = route.Dst.String()
	}
	name := routeTypes[route.Type] + "route to " + to
	if route.Gw != nil {
		name += " by " + route.Gw.String()
	}
	if device != "" {
		name += " through " + device
	}
	if route.Table != unix.RT_TABLE_MAIN {
		name += fmt.Sprintf(" in table %d", route.Table)
	}
	return name
}

// ruleName distinguishes rules for which the library has the same text.
func ruleName(rule netlink.Rule) string {
	family := map[int]string{netlink.FAMILY_V4: "IPv4", netlink.FAMILY_V6: "IPv6"}[rule.Family]
	if family == "" {
		family = fmt.Sprintf("address family %d", rule.Family)
	}
	name := fmt.Sprintf("%s routing rule %d", family, rule.Priority)
	for what, net := range map[string]*net.IPNet{" from ": rule.Src, " to ": rule.Dst} {
		if net != nil {
			name += what + net.String()
		}
	}
	if rule.Mark != 0 {
		name += fmt.Sprintf(" for mark %#x", rule.Mark)
	}
	if rule.IifName+rule.OifName != "" {
		name += " for device " + rule.IifName + rule.OifName
	}
	return name + fmt.Sprintf(", table %d", rule.Table)
}

// ownAddresses returns the addresses of this node, which include the gateways of bridges.
func ownAddresses() ([]netip.Addr, error) {
	list, err := dump.Whole(func() ([]netlink.Addr,
		error) {
		return netlink.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	var all []netip.Addr
	for _, one := range list {
		if ip, ok := netip.AddrFromSlice(one.IP); ok {
			all = append(all, ip.Unmap())
		}
	}
	return all, nil
}
