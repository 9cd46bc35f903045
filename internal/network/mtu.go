package network

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Until it is plugged in, a container's interface takes packets that are a byte shorter. A socket that
// is restored meanwhile has segments of 524 bytes: the kernel works out their size when the socket is
// connected, from the 536 bytes that hold before a peer has said anything (tcp_connect_init), not again
// when CRIU sets what the peer has said (tcp_repair_options_est), and from then on only if what the
// interface takes has changed (tcp_current_mss). It would have them for life.

// narrowed is what the interface takes before the container is plugged in.
func narrowed(address Address) int { return address.MTU - 1 }

// narrow makes it so.
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

// widen undoes narrow, and only that; doing nothing is success. A container that may do so gives its
// interface another size, or another name, or removes it: that is left to it.
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
