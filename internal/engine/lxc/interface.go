package lxc

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
)

// addInterface adds properties of a running container's interface that its configuration need not contain.
func addInterface(network *engine.Network, pid int) {
	link, err := interfaceIn(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil { // it has just ended, or differs from its configuration
		*network = engine.Network{}
		return
	}
	network.MAC, network.MTU = link.Attrs().HardwareAddr.String(), link.Attrs().MTU
}

// hostEnd returns the name of the node's end of the veth pair whose other end is in a container's network
// namespace.
func hostEnd(path string) (string, error) {
	inside, err := interfaceIn(path)
	if err != nil {
		return "", err
	}
	outside, err := netlink.LinkByIndex(inside.Attrs().ParentIndex)
	if err != nil {
		return "", fmt.Errorf("find the other end of %s in %s: %w", interfaceName, path, err)
	}
	return outside.Attrs().Name, nil
}

// interfaceIn finds a container's interface in its network namespace.
func interfaceIn(path string) (netlink.Link, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(interfaceName)
	if err != nil {
		return nil, fmt.Errorf("find %s in %s: %w", interfaceName, path, err)
	}
	return link, nil
}
