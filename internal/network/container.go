package network

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// containers are the containers that are attached to this node: their network namespaces, devices and
// addresses. The node's lock guards them.
type containers struct {
	*node
	all map[string]*attachment // by container id
}

// attachment is a container's connection to this node.
type attachment struct {
	address Address
	device  string // the node's end of the veth pair, or the bridge on which it is
	bridged bool   // the connection is its engine's
	blocked bool   // it receives nothing: see blockNamespace
}

// gateway returns every container's router, the same on every node. Its address is link-local and not used
// otherwise.
func gateway() (netip.Addr, net.HardwareAddr) {
	return netip.AddrFrom4([4]byte{169, 254, 1, 1}), net.HardwareAddr{0x0e, 0x67, 0x67, 0x77, 0, 1}
}

// Gateway returns where the default route of a container with an address of the pool leads.
func Gateway() netip.Addr {
	address, _ := gateway()
	return address
}

// containerDevice returns the name of the node's end of a container's veth pair: 15 bytes, the kernel's
// limit.
func containerDevice(id string) string {
	sum := sha256.Sum256([]byte(id))
	return "gwc" + hex.EncodeToString(sum[:6])
}

// Attach makes a container's network namespace, with its address, and the devices that connect it to this
// node, and returns the namespace's path. The container is not plugged in until Route says that it is here.
// Attach leaves existing objects unchanged, so a running container does not notice.
func (n *containers) Attach(ctx context.Context, id string, address Address) (string, error) {
	if !pool.ValidID.MatchString(id) {
		return "", fmt.Errorf("container id %q is %w: it must be letters, digits, and _ . - after the first",
			id, ErrInvalid)
	}
	mac, err := n.pool.Check(address)
	if err != nil {
		return "", fmt.Errorf("attach container %s: %w", id, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("attach container %s: %w", id, err)
	}
	for other, attached := range n.all {
		if attached.address.IP == address.IP && other != id {
			return "", fmt.Errorf("attach container %s: %w: container %s has %s here", id, ErrAddressTaken,
				other, address.IP)
		}
	}
	if old, ok := n.all[id]; ok && old.address != address {
		return "", fmt.Errorf("attach container %s with %+v is %w: it is attached with %+v; detach it first",
			id, address, ErrInvalid, old.address)
	}
	path := n.NetnsPath(id)
	if err := n.attach(id, path, address, mac); err != nil {
		return "", errors.Join(fmt.Errorf("attach container %s with %s: %w", id, address.IP, err),
			n.undoAttach(id))
	}
	if n.all[id] == nil {
		n.all[id] = &attachment{address: address, device: containerDevice(id), blocked: true}
	}
	return path, nil
}

// undoAttach removes what a failed Attach has made, but never an older attachment.
func (n *containers) undoAttach(id string) error {
	if _, stands := n.all[id]; stands {
		return nil
	}
	return n.detach(id)
}

// attach does the work of Attach. Each step may have been done before.
func (n *containers) attach(id, path string, address Address, mac net.HardwareAddr) error {
	if err := namespace.Make(path); err != nil {
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
	if err := n.makePair(handle, inside, id, address, mac); err != nil {
		return err
	}
	if err := n.configureOutside(id, address, mac); err != nil {
		return err
	}
	_, stands := n.all[id]
	if !stands {
		err := errors.Join(blockNamespace(path, false), narrow(handle, address), configureKernel(inside))
		if err != nil {
			return err
		}
	}
	// A container may have renamed the interface of an existing attachment.
	if err := configureInside(handle, inside, address); err != nil && !(stands && rtnl.IsLinkNotFound(err)) {
		return err
	}
	return nil
}

// makePair makes the veth pair unless both ends exist with the right settings. The container may have
// changed an existing pair.
func (n *containers) makePair(handle *netlink.Handle, inside netns.NsHandle, id string, address Address,
	mac net.HardwareAddr) error {
	name := containerDevice(id)
	_, stands := n.all[id]
	outside, err := n.links.LinkByName(name)
	if err != nil && !rtnl.IsLinkNotFound(err) {
		return fmt.Errorf("look for device %s: %w", name, err)
	}
	if err == nil {
		eth0, err := handle.LinkByIndex(outside.Attrs().ParentIndex)
		if err == nil && eth0.Attrs().ParentIndex == outside.Attrs().Index &&
			(stands || isMade(eth0.Attrs(), address, mac)) {
			return nil
		}
		if err := n.links.LinkDel(outside); err != nil {
			return fmt.Errorf("remove half-made device %s: %w", name, err)
		}
	}
	_, gatewayMAC := gateway()
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.Group = name, address.MTU, pool.GroupContainer
	attributes.HardwareAddr = gatewayMAC
	pair := netlink.NewVeth(attributes)
	pair.PeerName, pair.PeerHardwareAddr, pair.PeerMTU = pool.InsideDevice, mac, uint32(address.MTU)
	pair.PeerNamespace = netlink.NsFd(inside)
	if err := n.links.LinkAdd(pair); err != nil {
		return fmt.Errorf("make veth pair %s: %w", name, err)
	}
	return nil
}

// isMade reports whether a container's interface is as makePair and narrow make it.
func isMade(eth0 *netlink.LinkAttrs, address Address, mac net.HardwareAddr) bool {
	return eth0.Name == pool.InsideDevice && bytes.Equal(eth0.HardwareAddr, mac) &&
		(eth0.MTU == address.MTU || eth0.MTU == narrowed(address))
}

// configureOutside prepares the node's end. Its alias names the container, for a restarted agent.
func (n *containers) configureOutside(id string, address Address, mac net.HardwareAddr) error {
	name := containerDevice(id)
	link, err := n.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find device %s: %w", name, err)
	}
	if err := namespace.Within(n.ns, func() error { return namespace.DeviceSysctls(name) }); err != nil {
		return fmt.Errorf("prepare device %s: %w", name, err)
	}
	neighbour := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET,
		State: netlink.NUD_PERMANENT, IP: net.IP(address.IP.AsSlice()), HardwareAddr: mac}
	err = errors.Join(n.links.LinkSetAlias(link, aliasOf(id, address)), n.links.LinkSetUp(link),
		n.links.NeighSet(neighbour))
	if err != nil {
		return fmt.Errorf("configure device %s: %w", name, err)
	}
	return nil
}

// configureInside gives the container its address and its default route. The gateway's neighbour entry is
// permanent and the same on every node, so a container that moves has nothing to ask or to unlearn.
func configureInside(handle *netlink.Handle, inside netns.NsHandle, address Address) error {
	eth0, err := handle.LinkByName(pool.InsideDevice)
	if err != nil {
		return fmt.Errorf("find the container's %s: %w", pool.InsideDevice, err)
	}
	lo, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the container's loopback device: %w", err)
	}
	if err := namespace.Within(inside, func() error {
		return namespace.DisableIPv6(pool.InsideDevice)
	}); err != nil {
		return fmt.Errorf("prepare the container's %s: %w", pool.InsideDevice, err)
	}
	index := eth0.Attrs().Index
	router, routerMAC := gateway()
	own := &netlink.Addr{IPNet: rtnl.HostNet(address.IP), Scope: unix.RT_SCOPE_UNIVERSE}
	neighbour := &netlink.Neigh{LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: net.IP(router.AsSlice()), HardwareAddr: routerMAC}
	out := &netlink.Route{LinkIndex: index, Dst: rtnl.AllAddresses(), Gw: net.IP(router.AsSlice()),
		Flags: int(netlink.FLAG_ONLINK)}
	err = errors.Join(handle.LinkSetUp(lo), handle.AddrReplace(eth0, own), handle.LinkSetUp(eth0),
		handle.NeighSet(neighbour), handle.RouteReplace(out))
	if err != nil {
		return fmt.Errorf("configure the container's interface: %w", err)
	}
	return nil
}

// Settings are the kernel settings that Attach makes in a container's network namespace, if the kernel has
// them. CRIU cannot dump MPTCP sockets. Without MPTCP, servers in Go that ask for MPTCP listen with TCP.
func Settings() map[string]string { return map[string]string{"net.mptcp.enabled": "0"} }

// configureKernel makes the Settings.
func configureKernel(inside netns.NsHandle) error {
	return namespace.Within(inside, func() (err error) {
		for name, value := range Settings() {
			below := strings.TrimPrefix(strings.ReplaceAll(name, ".", "/"), "net/")
			if e := namespace.Sysctl(below, value); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
		return err
	})
}

// Detach removes a container's namespace, devices and local route. It is idempotent. A route by which this
// node sends the address elsewhere stays.
func (n *Network) Detach(id string) error {
	if !pool.ValidID.MatchString(id) {
		return fmt.Errorf("container id %q is %w", id, ErrInvalid)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if attached, ok := n.containers.all[id]; ok && attached.bridged {
		if err := n.onBridges.detachBridged(id, attached.address.IP); err != nil {
			return fmt.Errorf("detach container %s: %w", id, err)
		}
		return nil
	} else if ok {
		if err := n.plugs.unplug(attached.address.IP); err != nil {
			return fmt.Errorf("detach container %s: %w", id, err)
		}
	}
	if err := n.containers.detach(id); err != nil {
		return fmt.Errorf("detach container %s: %w", id, err)
	}
	delete(n.containers.all, id)
	return nil
}

// detach removes the devices, with all routes to them, and then the namespace.
func (n *containers) detach(id string) error {
	link, err := n.links.LinkByName(containerDevice(id))
	if err == nil {
		err = n.links.LinkDel(link)
	}
	if err != nil && !rtnl.IsLinkNotFound(err) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove device %s: %w", containerDevice(id), err)
	}
	return namespace.Remove(n.NetnsPath(id))
}

// aliasOf returns the alias that recoverContainers reads.
func aliasOf(id string, address Address) string {
	return strings.Join([]string{"godwit", id, address.IP.String(), address.MAC, strconv.Itoa(address.MTU)},
		" ")
}

// parseAlias is the inverse of aliasOf. Any privileged program may have changed the alias.
func parseAlias(addresses pool.Pool, alias string) (string, Address, bool) {
	fields := strings.Fields(alias)
	if len(fields) != 5 || fields[0] != "godwit" || !pool.ValidID.MatchString(fields[1]) {
		return "", Address{}, false
	}
	ip, errIP := netip.ParseAddr(fields[2])
	mtu, errMTU := strconv.Atoi(fields[4])
	address := Address{IP: ip, MAC: fields[3], MTU: mtu}
	if errIP != nil || errMTU != nil {
		return "", Address{}, false
	}
	_, err := addresses.Check(address)
	return fields[1], address, err == nil
}

// recoverContainers finds the containers that an earlier process attached. Containers to which the address
// was routed are plugged in. Containers that were held are not, because nobody knows whether they run here
// or elsewhere.
func (n *containers) recoverContainers() error {
	links, err := dump.Whole(n.links.LinkList)
	if err != nil {
		return fmt.Errorf("list the node's devices: %w", err)
	}
	routes, err := n.routes.List()
	if err != nil {
		return err
	}
	for _, link := range links {
		attributes := link.Attrs()
		id, address, ok := parseAlias(n.pool, attributes.Alias)
		if !ok || attributes.Group != pool.GroupContainer || containerDevice(id) != attributes.Name {
			continue
		}
		toIt := func(route netlink.Route) bool {
			return rtnl.IsHostRoute(address.IP)(route) && route.LinkIndex == attributes.Index
		}
		n.all[id] = &attachment{
			address: address, device: attributes.Name, blocked: true,
		}
		if slices.ContainsFunc(routes, toIt) {
			n.filter.KnowContainer(attributes.Name, address.IP)
		}
	}
	return nil
}

// bridgeOf finds the bridge device of a container on this node, and the MTU of its interface.
func (n *containers) bridgeOf(path string, ip netip.Addr) (bridge string, mtu int, err error) {
	inside, err := namespace.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = inside.Close() }()
	handle, err := netlink.NewHandleAt(inside, unix.NETLINK_ROUTE)
	if err != nil {
		return "", 0, fmt.Errorf("open a netlink socket in the container's namespace: %w", err)
	}
	defer handle.Close()
	eth0, err := handle.LinkByName(pool.InsideDevice)
	if err != nil {
		return "", 0, fmt.Errorf("find the container's %s: %w", pool.InsideDevice, err)
	}
	addresses, err := rtnl.AddressesOf(handle, eth0, netlink.FAMILY_V4)
	has := func(a netlink.Addr) bool { return a.IP.Equal(ip.AsSlice()) }
	if err != nil || !slices.ContainsFunc(addresses, has) {
		return "", 0, errors.Join(err,
			fmt.Errorf("the container's %s is %w: it does not have that address", pool.InsideDevice,
				ErrInvalid))
	}
	outside, err := n.links.LinkByIndex(eth0.Attrs().ParentIndex)
	if err != nil || outside.Type() != "veth" || outside.Attrs().MasterIndex == 0 {
		return "", 0, errors.Join(err, fmt.Errorf("the container's %s is %w: its other end is on no "+
			"bridge of this node", pool.InsideDevice, ErrInvalid))
	}
	master, err := n.links.LinkByIndex(outside.Attrs().MasterIndex)
	if err != nil {
		return "", 0, fmt.Errorf("find the bridge of device %s: %w", outside.Attrs().Name, err)
	}
	return master.Attrs().Name, eth0.Attrs().MTU, nil
}
