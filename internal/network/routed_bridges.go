package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// Podman removes a bridge, with all settings that this node has made on it, together with the bridge's last
// container. When Podman makes the bridge again for the next container, this node makes the settings again
// at once, because that container may immediately want to reach a container at another node.

// remakeBridges makes this node answer, on the existing bridges, for all containers that are elsewhere, and
// routes to them.
func (n *Network) remakeBridges() error {
	var errs []error
	for _, routed := range n.routed {
		if link, err := n.bridge(routed.Device); link == nil || err != nil {
			errs = append(errs, err)
			continue
		}
		// This node answers ARP requests for addresses at other nodes, and forwards (ip-sysctl.rst,
		// proxy_arp).
		err := namespace.Within(n.ns, func() error {
			return namespace.Sysctl("ipv4/conf/"+routed.Device+"/proxy_arp", "1")
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the bridge has gone
			errs = append(errs, fmt.Errorf("network on %s: %w", routed.Device, err))
		}
	}
	for ip, one := range n.bridged {
		if !one.Here && one.Via != 0 && one.Bridge != "" {
			_, err := n.proxy(one.Bridge, ip)
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, n.routeBridged())...)
}

// proxy makes this node answer on a bridge for an address. It returns the bridge, or nil if it does not
// exist now.
func (n *Network) proxy(device string, ip netip.Addr) (netlink.Link, error) {
	link, err := n.bridge(device)
	if link == nil || err != nil {
		return nil, err
	}
	entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, Flags: netlink.NTF_PROXY,
		IP: ip.AsSlice()}
	if err := n.links.NeighSet(entry); err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("answer for %s on %s: %w", ip, device, err)
	}
	return link, nil
}

// bridge returns a bridge on which this node answers for containers elsewhere, or nil if it does not exist
// now. It fixes the bridge's hardware address, as newer engines do. Otherwise the bridge has the address of
// one of its ports, and gets another one when that container leaves, without notice to containers that send
// through the bridge.
func (n *Network) bridge(device string) (netlink.Link, error) {
	link, err := n.links.LinkByName(device)
	if rtnl.IsLinkNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err == nil && !n.lasting[link.Attrs().Index] {
		err = n.links.LinkSetHardwareAddr(link, link.Attrs().HardwareAddr)
		n.lasting[link.Attrs().Index] = err == nil
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("find bridge %s: %w", device, err)
	}
	return link, nil
}

// watchAgain is the delay before devices are watched again after watching has ended by itself. The kernel
// stops reporting if too much happens at once.
const watchAgain = time.Second

// watchBridges calls remakeBridges when a relevant bridge is made or brought up, until the network is
// closed.
func (n *Network) watchBridges() {
	for {
		n.watchBridgesOnce()
		select {
		case <-n.closed:
			return
		case <-time.After(watchAgain):
		}
	}
}

// watchBridgesOnce does the same until the kernel stops reporting.
func (n *Network) watchBridgesOnce() {
	changes, over := make(chan netlink.LinkUpdate), make(chan struct{})
	// changes is closed after an error
	options := netlink.LinkSubscribeOptions{Namespace: &n.ns, ErrorCallback: func(error) {}}
	if err := netlink.LinkSubscribeWithOptions(changes, over, options); err != nil {
		return
	}
	defer func() {
		close(over) // closes the socket, also when the kernel has stopped reporting
		for range changes {
		}
	}()
	n.bridgesChanged(func(string) bool { return true }) // for changes before the subscription
	for {
		select {
		case <-n.closed:
			return
		case change, more := <-changes:
			if !more {
				return
			}
			if change.Header.Type == unix.RTM_NEWLINK && change.Link.Type() == "bridge" {
				n.bridgesChanged(func(name string) bool { return name == change.Link.Attrs().Name })
			}
		}
	}
}

// bridgesChanged calls remakeBridges if a relevant bridge has changed.
func (n *Network) bridgesChanged(changed func(name string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	matters := slices.ContainsFunc(n.routed, func(one RoutedNetwork) bool { return changed(one.Device) })
	for _, one := range n.bridged {
		matters = matters || !one.Here && one.Bridge != "" && changed(one.Bridge)
	}
	if !matters {
		return
	}
	if err := n.remakeBridges(); err != nil {
		n.unrouted = true // makes SetRoutedNetworks retry
		n.config.Log.Warn("a bridge does not answer yet for containers on other nodes", "error", err)
	}
}
