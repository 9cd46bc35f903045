package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// Keep is what a restarted agent expects on its node.
type Keep struct {
	Containers []string     // ids that are attached
	Routes     []netip.Addr // addresses with a route of their own
}

// Reconcile removes leftovers of a crash or a reboot: every attachment, route and device of ours that is
// not to be kept. It makes nothing; Attach, Route and Hold do. It keeps addresses that this process holds.
func (n *Network) Reconcile(keep Keep) error {
	containers, routes := map[string]bool{}, map[string]bool{}
	for _, id := range keep.Containers {
		containers[id] = true
	}
	for _, ip := range keep.Routes {
		routes[rtnl.HostNet(ip).String()] = true
	}
	ids, err := n.containers.leftovers()
	if err != nil {
		return err
	}
	// migrations and engines end these themselves
	for _, one := range n.onBridges.BridgedPlaces() {
		containers[one.Container] = containers[one.Container] || one.Here
		routes[rtnl.HostNet(one.Address).String()] = true
	}
	for _, id := range ids {
		if !containers[id] {
			if err := n.Detach(id); err != nil {
				return err
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	devices := map[string]bool{}
	for _, ip := range n.holds.Addresses() {
		routes[rtnl.HostNet(ip).String()] = true
	}
	for id := range containers {
		devices[containerDevice(id)] = true
	}
	return n.sweep(routes, devices)
}

// leftovers returns the IDs of all attachments that are in memory or mounted.
func (n *containers) leftovers() ([]string, error) {
	directory := n.NetnsPath("")
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var ids []string
	for id := range n.all {
		ids = append(ids, id)
	}
	for _, entry := range entries {
		if _, known := n.all[entry.Name()]; !known && pool.ValidID.MatchString(entry.Name()) {
			ids = append(ids, entry.Name())
		}
	}
	return ids, nil
}

// sweep removes veth devices, host routes, home rules and tables of holds that are not to be kept.
func (n *Network) sweep(routes, devices map[string]bool) error {
	links, err := dump.Whole(n.links.LinkList)
	if err != nil {
		return fmt.Errorf("list the node's devices: %w", err)
	}
	for _, link := range links {
		if link.Attrs().Group != pool.GroupContainer || devices[link.Attrs().Name] {
			continue
		}
		if err := n.links.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove device %s: %w", link.Attrs().Name, err)
		}
	}
	ended := func(table int) bool {
		return table>>24 == rtnl.HoldTables>>24 && n.devices.tables[table] == nil
	}
	err = n.routes.RemoveRoutes(func(route netlink.Route) bool {
		if route.Table != unix.RT_TABLE_MAIN || route.Dst == nil {
			return ended(route.Table)
		}
		bits, _ := route.Dst.Mask.Size()
		return bits == 32 && !routes[route.Dst.String()] && !n.tunnel.ToOverlay(route)
	})
	if err != nil {
		return err
	}
	return n.routes.RemoveRules(func(rule netlink.Rule) bool {
		return ended(rule.Table) || rule.Priority == rtnl.PriorityHome && rule.Src != nil &&
			!routes[rule.Src.String()]
	})
}

// Cleanup removes everything that this package has made on the node except the leases: attachments, routes,
// rules, tunnel and packet filter. It works from what exists, so it needs only the configuration, and the
// underlay need not be up. It is idempotent.
func Cleanup(config Config) error {
	n, err := open(config)
	if err != nil {
		return err
	}
	return errors.Join(n.cleanup(), n.Close())
}

// cleanup continues after an error, so that as little as possible is left.
func (n *Network) cleanup() error {
	ids, err := n.containers.leftovers()
	errs := []error{err}
	for _, id := range ids {
		errs = append(errs, n.containers.detach(id))
	}
	errs = append(errs, n.tunnel.Remove(), n.removeDevices(),
		n.routes.RemoveRules(func(netlink.Rule) bool { return true }),
		n.routes.RemoveRoutes(func(netlink.Route) bool { return true }),
		n.forwarding.endForwarding(), n.filter.Remove(), n.suppressed.Remove(), n.onBridges.cleanupBridged(),
		n.passages.RemoveAllowed())
	return errors.Join(errs...)
}

// removeDevices removes all devices of our groups.
func (n *Network) removeDevices() error {
	links, err := dump.Whole(n.links.LinkList)
	if err != nil {
		return fmt.Errorf("list the node's devices: %w", err)
	}
	var errs []error
	for _, link := range links {
		switch link.Attrs().Group {
		case pool.GroupContainer, pool.GroupTunnel, pool.GroupHold:
		default:
			continue
		}
		if !strings.HasPrefix(link.Attrs().Name, "gw") {
			continue // another program uses the same group
		}
		if err := n.links.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove device %s: %w", link.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}
