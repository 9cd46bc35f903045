package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
)

// Adopt takes over the connection of a container that another engine has started: its network namespace,
// such as /proc/PID/ns/net, and its veth pair, whose end on the node must not be on a bridge. From then on
// the connection is as if Attach had made it, except that the device keeps its old name as an alternative
// name. Adopt is idempotent, so a running container does not notice. If the container has an address of
// this node, it gets the lease (Lease).
func (n *Network) Adopt(ctx context.Context, id, netns string, address Address) error {
	if !pool.ValidID.MatchString(id) {
		return fmt.Errorf("container id %q is %w", id, ErrInvalid)
	}
	if _, err := n.pool.Check(address); err != nil {
		return fmt.Errorf("adopt container %s: %w", id, err)
	}
	path := n.NetnsPath(id)
	if !namespace.SameFile(path, netns) {
		if err := n.Detach(id); err != nil { // it was restarted since
			return fmt.Errorf("adopt container %s: %w", id, err)
		}
		if err := n.leases.Take(id, address); err != nil {
			return fmt.Errorf("adopt container %s: %w", id, err)
		}
	}
	err := n.containers.adopt(ctx, id, path, netns, address)
	if err == nil {
		err = n.Route(address.IP, Local(id))
	}
	if err != nil {
		return fmt.Errorf("adopt container %s with %s: %w", id, address.IP, err)
	}
	return nil
}

func (n *containers) adopt(ctx context.Context, id, path, theirs string, address Address) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if n.all[id] != nil {
		return nil
	}
	for other, attached := range n.all {
		if attached.address.IP == address.IP {
			return fmt.Errorf("%w: container %s has it here", ErrAddressTaken, other)
		}
	}
	mac, err := n.pool.Check(address)
	if err != nil {
		return err
	}
	if err := namespace.Bind(theirs, path); err != nil {
		return err
	}
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
	if err := n.takePair(handle, id, address); err != nil {
		return errors.Join(err, namespace.Remove(path))
	}
	if err := errors.Join(n.configureOutside(id, address, mac),
		configureInside(handle, inside, address)); err != nil {
		return err
	}
	n.all[id] = &attachment{address: address, device: containerDevice(id)}
	return nil
}

// takePair gives the node's end of a veth pair the settings of makePair.
func (n *containers) takePair(handle *netlink.Handle, id string, address Address) error {
	eth0, err := handle.LinkByName(pool.InsideDevice)
	if err != nil {
		return fmt.Errorf("find the container's %s: %w", pool.InsideDevice, err)
	}
	outside, err := n.links.LinkByIndex(eth0.Attrs().ParentIndex)
	if err != nil || outside.Type() != "veth" || outside.Attrs().ParentIndex != eth0.Attrs().Index {
		return fmt.Errorf("the container's %s is %w: its other end is no veth device of this node",
			pool.InsideDevice, ErrInvalid)
	}
	if outside.Attrs().MasterIndex != 0 {
		return fmt.Errorf("the container's device %s is %w: it is on a bridge", outside.Attrs().Name,
			ErrInvalid)
	}
	_, gatewayMAC := gateway()
	old, name := outside.Attrs().Name, containerDevice(id)
	if old != name {
		if err := n.rename(outside, name); err != nil {
			return fmt.Errorf("rename device %s to %s: %w", old, name, err)
		}
		_ = n.links.LinkAddAltName(outside, old) // Linux 5.5; its engine finds it by this name
	}
	err = errors.Join(n.links.LinkSetGroup(outside, pool.GroupContainer),
		n.links.LinkSetHardwareAddr(outside, gatewayMAC),
		n.links.LinkSetMTU(outside, address.MTU), handle.LinkSetMTU(eth0, address.MTU))
	if err != nil {
		return fmt.Errorf("take over device %s: %w", name, err)
	}
	return nil
}

// rename renames a device. Before Linux 6.2, the device has to be down for a moment.
func (n *containers) rename(link netlink.Link, name string) error {
	err := n.links.LinkSetName(link, name)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := n.links.LinkSetDown(link); err != nil {
		return err
	}
	return errors.Join(n.links.LinkSetName(link, name), n.links.LinkSetUp(link))
}
