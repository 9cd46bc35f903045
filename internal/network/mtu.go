package network

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Until a container is plugged in, the MTU of its interface is a byte smaller. Otherwise a socket restored
// meanwhile would have segments of 524 bytes for life. The kernel computes their size when the socket is
// connected, from the 536 bytes that apply before a peer has said anything (tcp_connect_init). It does not
// compute it again when CRIU sets what the peer has said (tcp_repair_options_est), and later only if the
// MTU of the interface has changed (tcp_current_mss).

// narrowed is the MTU of the interface before the container is plugged in.
func narrowed(address Address) int { return address.MTU - 1 }

// narrow sets that MTU.
func narrow(inside *netlink.Handle, address Address) error {
	eth0, err := inside.LinkByName(insideDevice)
	if err == nil {
		err = inside.LinkSetMTU(eth0, narrowed(address))
	}
	if err != nil {
		return fmt.Errorf("narrow the container's %s: %w", insideDevice, err)
	}
	return nil
}

// widen undoes narrow, and nothing else; it is idempotent. A container with the right to do so may have
// changed the interface's MTU or name, or removed it: widen leaves that alone.
func widen(path string, address Address) error {
	inside, err := openNamespace(path)
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }()
	handle, err := netlink.NewHandleAt(inside, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket in the container's namespace: %w", err)
	}
	defer handle.Close()
	eth0, err := handle.LinkByName(insideDevice)
	if isLinkNotFound(err) || err == nil && eth0.Attrs().MTU != narrowed(address) {
		return nil
	}
	if err == nil {
		err = handle.LinkSetMTU(eth0, address.MTU)
	}
	if err != nil {
		return fmt.Errorf("widen the container's %s: %w", insideDevice, err)
	}
	return nil
}
