package network

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// Until a container is plugged in, the MTU of its interface is a byte smaller. Otherwise a socket restored
// meanwhile would have segments of 524 bytes for life. The kernel computes their size when the socket is
// connected, from the 536 bytes that apply before a peer has said anything (tcp_connect_init). It does not
// compute it again when CRIU sets what the peer has said (tcp_repair_options_est), and later only if the
// MTU has changed (tcp_current_mss).
//
// On a bridge, the container's routes get that MTU, and the interface keeps its own: veth silently drops
// packets that are larger than the receiving interface's MTU (is_skb_forwardable, net/core/dev.c). Peers keep
// the segment size that they negotiated before the move, and would retransmit a dropped segment for ever.

// narrowed is the MTU before the container is plugged in.
func narrowed(address Address) int { return address.MTU - 1 }

// narrow sets the narrowed MTU.
func narrow(inside *netlink.Handle, address Address) error {
	eth0, err := inside.LinkByName(pool.InsideDevice)
	if err == nil {
		err = inside.LinkSetMTU(eth0, narrowed(address))
	}
	if err != nil {
		return fmt.Errorf("narrow the container's %s: %w", pool.InsideDevice, err)
	}
	return nil
}

// narrowRoutes sets the narrowed MTU on the routes of a container on a bridge.
func narrowRoutes(inside *netlink.Handle, address Address) error {
	eth0, err := inside.LinkByName(pool.InsideDevice)
	if err == nil {
		err = limitRoutes(inside, eth0, narrowed(address))
	}
	if err != nil {
		return fmt.Errorf("set the MTU of the routes through the container's %s: %w", pool.InsideDevice, err)
	}
	return nil
}

// widen undoes narrow and narrowRoutes, and nothing else; it is idempotent. A container with enough
// privileges may have renamed or removed the interface or changed its MTU; widen leaves such changes alone.
func widen(path string, attached *attachment) error {
	inside, err := namespace.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }()
	handle, err := netlink.NewHandleAt(inside, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket in the container's namespace: %w", err)
	}
	defer handle.Close()
	eth0, err := handle.LinkByName(pool.InsideDevice)
	if rtnl.IsLinkNotFound(err) {
		return nil
	}
	address := attached.address
	switch {
	case err != nil:
	case eth0.Attrs().MTU == narrowed(address):
		err = handle.LinkSetMTU(eth0, address.MTU)
	case attached.bridged && eth0.Attrs().MTU > address.MTU:
		err = limitRoutes(handle, eth0, address.MTU)
	}
	if err != nil {
		return fmt.Errorf("widen the container's %s: %w", pool.InsideDevice, err)
	}
	return nil
}

// limitRoutes sets this MTU on IPv4 routes through an interface, unless somebody has set a smaller MTU. An
// MTU that is one byte smaller was set by narrowRoutes.
func limitRoutes(handle *netlink.Handle, eth0 netlink.Link, mtu int) error {
	routes, err := dump.Whole(func() ([]netlink.Route,
		error) {
		return handle.RouteList(eth0, netlink.FAMILY_V4)
	})
	for i := range routes {
		route := &routes[i]
		if err == nil && (route.MTU == 0 || route.MTU == mtu-1 || route.MTU > mtu) {
			route.MTU = mtu
			err = handle.RouteReplace(route)
		}
	}
	return err
}
