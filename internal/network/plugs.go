package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/godwit/godwit/internal/network/rtnl"
)

// plugs lets containers send and receive, and finds the routes to them.
type plugs struct {
	*node
	containers *containers
	records    *records
}

// known refuses an address that is neither in the pool nor that of a container on a bridge.
func (n *plugs) known(ip netip.Addr) error {
	if _, is := n.records.at(ip); is {
		return nil
	}
	_, err := n.pool.Home(ip)
	return err
}

// routeTo returns a route to the address's destination, after checking that the destination exists.
func (n *plugs) routeTo(prefix *net.IPNet, to Destination, table int, ip netip.Addr) (*netlink.Route,
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
	attached, ok := n.containers.all[to.Container]
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
func (n *plugs) plug(ip netip.Addr, id string) error {
	attached := n.containers.all[id]
	err := n.containers.unblock(id, attached)
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
func (n *plugs) unplug(ip netip.Addr) error {
	for _, attached := range n.containers.all {
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
