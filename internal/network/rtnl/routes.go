package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
	"github.com/godwit/godwit/internal/network/pool"
)

// Priorities of our rules, in the order in which the kernel evaluates them, after its local table and
// before the main table.
const (
	PriorityHold    = 7440 + iota // packets from a hold: to the hold's destination
	PriorityPool                  // packets to containers and nodes: the main table only
	priorityIngress               // answers: to the node through which the connection came in
	PriorityHome                  // other packets of a container that is away from home: home
	priorityEnd
)

// Our routing tables are numbered from these. Only the owner of a number may use it, so the numbers are
// unusual ones.
const (
	peerTables = 0x67000000
	HoldTables = 0x68000000
)

// PeerTable is the routing table whose only route sends everything to a peer.
func PeerTable(number int) int { return peerTables + number }

// Routes makes, lists and removes the routes and rules of this node that are ours. It has no state but the
// kernel's.
type Routes struct {
	Links  *netlink.Handle
	Pool   pool.Pool
	Tunnel int // index of the tunnel's device
}

// Via returns a route through the tunnel to a peer.
func (r Routes) Via(prefix *net.IPNet, number, table int) *netlink.Route {
	route := r.Route(prefix, table)
	route.LinkIndex, route.Gw = r.Tunnel, net.IP(r.Pool.NodeAddress(number).AsSlice())
	route.Flags = int(netlink.FLAG_ONLINK)
	return route
}

// Route returns a route with the common attributes of our routes. The source is the node's address in the
// pool, so that containers everywhere know the way back to the node.
func (r Routes) Route(prefix *net.IPNet, table int) *netlink.Route {
	return &netlink.Route{Dst: prefix, Table: table, Protocol: pool.RouteProtocol,
		Src: net.IP(r.Pool.NodeAddress(r.Pool.Number).AsSlice())}
}

// IngressRule sends answers with an ingress mark to a table.
func (r Routes) IngressRule(number, table int) *netlink.Rule {
	mask := uint32(pool.IngressMask)
	rule := netlink.NewRule()
	rule.Priority, rule.Table = priorityIngress, table
	rule.Mark, rule.Mask = uint32(number)<<pool.IngressShift, &mask
	return rule
}

// AddRules adds missing rules.
func (r Routes) AddRules(rules ...*netlink.Rule) error {
	for _, rule := range rules {
		if err := r.Links.RuleAdd(rule); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("add routing rule (%s): %w", rule, err)
		}
	}
	return nil
}

// RemoveRules removes our rules that match.
func (r Routes) RemoveRules(match func(netlink.Rule) bool) error {
	rules, err := dump.Whole(func() ([]netlink.Rule, error) { return r.Links.RuleList(netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list routing rules: %w", err)
	}
	for _, rule := range rules {
		if rule.Priority < PriorityHold || rule.Priority >= priorityEnd || !match(rule) {
			continue
		}
		if err := r.Links.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove routing rule (%s): %w", rule, err)
		}
	}
	return nil
}

// RemoveRoutes removes our routes that match, in all tables.
func (r Routes) RemoveRoutes(match func(netlink.Route) bool) error {
	routes, err := r.List()
	if err != nil {
		return err
	}
	for _, route := range routes {
		if !match(route) {
			continue
		}
		if err := r.Links.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route %s: %w", route, err)
		}
	}
	return nil
}

// List finds our routes in all tables.
func (r Routes) List() ([]netlink.Route, error) {
	filter := &netlink.Route{Protocol: pool.RouteProtocol, Table: unix.RT_TABLE_UNSPEC}
	routes, err := dump.Whole(func() ([]netlink.Route, error) {
		return r.Links.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_PROTOCOL|
			netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

// IsHostRoute reports whether a route is an address's own route in the main table.
func IsHostRoute(ip netip.Addr) func(netlink.Route) bool {
	return func(route netlink.Route) bool {
		return route.Table == unix.RT_TABLE_MAIN && route.Dst != nil &&
			route.Dst.String() == HostNet(ip).String()
	}
}

// Blackhole makes a route to nowhere. It replaces the route of an earlier process, but never another
// program's.
func (r Routes) Blackhole(prefix netip.Prefix) error {
	route := r.Route(IPNet(prefix), unix.RT_TABLE_MAIN)
	route.Type = unix.RTN_BLACKHOLE
	err := r.Links.RouteAdd(route)
	if errors.Is(err, unix.EEXIST) {
		var ours []netlink.Route
		ours, err = r.List()
		is := func(other netlink.Route) bool {
			to, ok := PrefixOf(other.Dst)
			return ok && to == prefix && other.Table == unix.RT_TABLE_MAIN && other.Type == unix.RTN_BLACKHOLE
		}
		switch {
		case err != nil:
		case slices.ContainsFunc(ours, is):
			err = r.Links.RouteReplace(route)
		default:
			err = fmt.Errorf("%s %w: there is another route", prefix, pool.ErrInUse)
		}
	}
	if err != nil {
		return fmt.Errorf("make the blackhole route of %s: %w", prefix, err)
	}
	return nil
}
