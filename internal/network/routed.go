package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/rtnl"
)

// routedNetworks are the networks of engines that all nodes have. The node's lock guards them.
type routedNetworks struct {
	*node
	list []RoutedNetwork
}

// SetRoutedNetworks replaces the set of routed networks. Routes of a removed network stay until the agent
// restarts: they lead nowhere. The error names networks that cannot be routed; the others are routed. The
// next call tries failed ones again.
func (n *onBridges) SetRoutedNetworks(networks []RoutedNetwork) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var good []RoutedNetwork
	var errs []error
	for _, routed := range networks {
		err := n.routed.checkRouted(routed)
		if err == nil {
			good = append(good, routed)
		}
		errs = append(errs, err)
	}
	if slices.Equal(n.routed.list, good) && !n.unrouted {
		return errors.Join(errs...)
	}
	n.routed.list = good
	err := errors.Join(n.filterBridged(), n.remakeBridges())
	if n.records.count()+len(n.routed.list) == 0 {
		err = errors.Join(err, n.passages.Remove())
	} else {
		err = errors.Join(err, n.passages.Make())
	}
	n.unrouted = err != nil
	return errors.Join(append(errs, err)...)
}

// checkRouted requires a routed network to contain a part for this node, and none of the pool's addresses.
func (n *routedNetworks) checkRouted(routed RoutedNetwork) error {
	_, err := routed.Part(n.pool.Number)
	if err == nil && routed.Subnet.Overlaps(n.config.Pool) {
		err = fmt.Errorf("subnet %s is %w: it overlaps %s", routed.Subnet, ErrInvalid, n.config.Pool)
	}
	if err != nil {
		return fmt.Errorf("network on %s: %w", routed.Device, err)
	}
	return nil
}

// routeNetworks makes the routes to the parts of other nodes.
func (n *routedNetworks) routeNetworks() error {
	var errs []error
	for _, routed := range n.list {
		for number := range n.tunnel.Peers() {
			part, err := routed.Part(number)
			if err == nil {
				err = n.links.RouteReplace(n.routes.Via(rtnl.IPNet(part), number, unix.RT_TABLE_MAIN))
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// isGuest reports whether an address is in the part of a routed network that belongs to another node.
func (n *routedNetworks) isGuest(ip netip.Addr) bool {
	return slices.ContainsFunc(n.list, func(routed RoutedNetwork) bool {
		part, err := routed.Part(n.pool.Number)
		return err == nil && routed.Subnet.Contains(ip) && !part.Contains(ip)
	})
}
