package network

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
	"github.com/godwit/godwit/internal/network/filter"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// TunnelDevice is the device of the tunnel to the other nodes.
const TunnelDevice = "gw-vxlan"

// bringUpTunnel makes the VXLAN device, or takes over an existing one with the right settings.
func (n *Network) bringUpTunnel() error {
	mtu, err := n.tunnelMTU()
	if err != nil {
		return err
	}
	number := n.config.NodeNumber
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.Group = TunnelDevice, mtu, pool.GroupTunnel
	attributes.HardwareAddr = pool.TunnelMAC(number)
	wanted := &netlink.Vxlan{
		LinkAttrs: attributes, VxlanId: vni, SrcAddr: n.tunnelEnd().AsSlice(), Port: n.config.Port,
		UDPCSum: true,
	}
	if err := n.makeTunnel(wanted); err != nil {
		return err
	}
	link, err := n.links.LinkByName(TunnelDevice)
	if err != nil {
		return fmt.Errorf("find the tunnel %s: %w", TunnelDevice, err)
	}
	if err := namespace.Within(n.ns, func() error {
		return namespace.DeviceSysctls(TunnelDevice)
	}); err != nil {
		return fmt.Errorf("prepare the tunnel: %w", err)
	}
	own := &netlink.Addr{IPNet: rtnl.HostNet(n.pool.NodeAddress(number)), Scope: unix.RT_SCOPE_UNIVERSE}
	err = errors.Join(n.links.LinkSetMTU(link, mtu), n.links.AddrReplace(link, own), n.links.LinkSetUp(link))
	if n.config.encrypted() {
		// Not on the overlay's device: a release without encryption does not know that device, and would
		// take an address of the pool there for another program's.
		end := &netlink.Addr{IPNet: rtnl.HostNet(n.tunnelEnd()), Scope: unix.RT_SCOPE_UNIVERSE}
		err = errors.Join(err, n.links.AddrReplace(link, end))
	}
	if err != nil {
		return fmt.Errorf("configure the tunnel %s: %w", TunnelDevice, err)
	}
	n.tunnel, n.mtu, n.routes.Tunnel = link, mtu, link.Attrs().Index
	return nil
}

// makeTunnel creates the device unless an equal one exists.
func (n *Network) makeTunnel(wanted *netlink.Vxlan) error {
	found, err := n.links.LinkByName(TunnelDevice)
	if err != nil && !rtnl.IsLinkNotFound(err) {
		return fmt.Errorf("look for the tunnel %s: %w", TunnelDevice, err)
	}
	if err == nil {
		old, ok := found.(*netlink.Vxlan)
		if ok && old.VxlanId == wanted.VxlanId && old.Port == wanted.Port &&
			old.SrcAddr.Equal(wanted.SrcAddr) &&
			bytes.Equal(old.HardwareAddr, wanted.HardwareAddr) && old.Attrs().Group == pool.GroupTunnel &&
			!old.Learning {
			return nil
		}
		if err := n.links.LinkDel(found); err != nil {
			return fmt.Errorf("remove a tunnel %s that has another configuration: %w", TunnelDevice, err)
		}
	}
	if err := n.links.LinkAdd(wanted); err != nil {
		return fmt.Errorf("make the tunnel %s (VXLAN %d, UDP port %d, from %s): %w; is another VXLAN "+
			"device using the port?",
			TunnelDevice, vni, wanted.Port, n.config.Underlay, err)
	}
	return nil
}

// findUnderlay finds the interface that has the underlay address.
func (n *Network) findUnderlay() error {
	addresses, err := rtnl.AddressesOf(n.links, nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, address := range addresses {
		if ip, ok := netip.AddrFromSlice(address.IP); !ok || ip.Unmap() != n.config.Underlay {
			continue
		}
		if n.underlay, err = n.links.LinkByIndex(address.LinkIndex); err != nil {
			return fmt.Errorf("find the interface of underlay address %s: %w", n.config.Underlay, err)
		}
		return nil
	}
	return fmt.Errorf("underlay address %s is %w: no interface of this node has it", n.config.Underlay,
		ErrInvalid)
}

// tunnelMTU is the MTU that remains of the underlay's interface.
func (n *Network) tunnelMTU() (int, error) {
	link := n.underlay.Attrs()
	most := min(link.MTU, pool.MaxMTU) - n.config.overhead()
	switch {
	case n.config.MTU > most || most < pool.MinMTU:
		return 0, fmt.Errorf("MTU %d is %w: interface %s of underlay address %s leaves %d of its %d bytes",
			n.config.MTU, ErrInvalid, link.Name, n.config.Underlay, most, link.MTU)
	case n.config.MTU != 0:
		return n.config.MTU, nil
	}
	return most, nil
}

// SetPeers replaces the list of other nodes: nodes not in it are forgotten, with the routes through them.
func (n *Network) SetPeers(peers []Peer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	wanted, err := n.checkPeers(peers)
	if err != nil {
		return err
	}
	// The packet filter must let a new peer in before the first packet can come, and keeps an old one
	// until its routes are gone.
	if err := n.filter.SetPeers(n.filterPeers(wanted)); err != nil {
		return err
	}
	old := n.peers
	n.peers = wanted
	for number, peer := range old {
		if _, keep := wanted[number]; !keep {
			if err := n.removePeer(peer); err != nil {
				return fmt.Errorf("forget peer %s (node %d): %w", peer.Name, number, err)
			}
		}
	}
	if err := n.applyOverlay(); err != nil {
		return err
	}
	for _, peer := range wanted {
		if err := n.addPeer(peer); err != nil {
			return fmt.Errorf("set up peer %s (node %d at %s): %w", peer.Name, peer.Number, peer.Underlay,
				err)
		}
	}
	return n.routeBridged()
}

// filterPeers describes peers for the packet filter.
func (n *Network) filterPeers(peers map[int]Peer) map[int]filter.Peer {
	all := map[int]filter.Peer{}
	for number, peer := range peers {
		one := filter.Peer{Underlay: peer.Underlay}
		if !peer.Apart {
			one.End = n.tunnelEndOf(peer)
		}
		all[number] = one
	}
	return all
}

// Consistent leaves out peers that SetPeers would refuse because they contradict this node or another peer,
// such as a peer with the underlay address of another. What one node says about itself must not keep other
// peers from being set, or removed nodes from being forgotten. Peers that are already set take precedence,
// then lower numbers over higher ones.
func (n *Network) Consistent(peers []Peer) (kept []Peer, contradictions []error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	isSet := func(p Peer) bool { return n.peers[p.Number].Underlay == p.Underlay.Unmap() }
	sorted := slices.Clone(peers)
	slices.SortStableFunc(sorted, func(a, b Peer) int {
		switch {
		case isSet(a) && !isSet(b):
			return -1
		case isSet(b) && !isSet(a):
			return 1
		}
		return cmp.Compare(a.Number, b.Number)
	})
	for _, peer := range sorted {
		if _, err := n.checkPeers(append(slices.Clone(kept), peer)); err != nil {
			contradictions = append(contradictions, err)
			continue
		}
		kept = append(kept, peer)
	}
	return kept, contradictions
}

// checkPeers refuses a list that contradicts itself or this node.
func (n *Network) checkPeers(peers []Peer) (map[int]Peer, error) {
	wanted := map[int]Peer{}
	names := map[string]bool{n.config.NodeName: true}
	underlays := map[netip.Addr]bool{n.config.Underlay: true}
	keys := map[wireguard.Key]bool{}
	for _, peer := range peers {
		peer.Underlay = peer.Underlay.Unmap()
		if err := n.pool.CheckNumber(peer.Number); err != nil {
			return nil, fmt.Errorf("peer %s: %w", peer.Name, err)
		}
		_, twice := wanted[peer.Number]
		switch {
		case peer.Name == "" || names[peer.Name]:
			return nil, fmt.Errorf("peer name %q is %w: it is empty, used twice, or this node's own",
				peer.Name, ErrInvalid)
		case twice || peer.Number == n.config.NodeNumber:
			return nil, fmt.Errorf("number %d of peer %s is %w: another node has it", peer.Number, peer.Name,
				ErrInvalid)
		case !peer.Underlay.IsValid() || peer.Underlay.Is4() != n.config.Underlay.Is4() ||
			peer.Underlay.IsUnspecified() ||
			peer.Underlay.IsMulticast() || underlays[peer.Underlay] || n.config.Pool.Contains(peer.Underlay):
			return nil, fmt.Errorf("underlay address %s of peer %s is %w: it must be another node's, "+
				"outside %s, and of the kind of %s",
				peer.Underlay, peer.Name, ErrInvalid, n.config.Pool, n.config.Underlay)
		}
		if !peer.Key.IsZero() && keys[peer.Key] {
			return nil, fmt.Errorf("key %s of peer %s is %w: another node has it",
				peer.Key, peer.Name, ErrInvalid)
		}
		wanted[peer.Number], names[peer.Name], underlays[peer.Underlay] = peer, true, true
		keys[peer.Key] = true
	}
	return wanted, nil
}

// addPeer makes the tunnel's entries for a peer, and the routes through the peer.
func (n *Network) addPeer(peer Peer) error {
	for _, entry := range n.peerNeighbours(peer) {
		if err := n.links.NeighSet(entry); err != nil {
			return fmt.Errorf("set neighbour entry: %w", err)
		}
	}
	if peer.Apart {
		if err := n.removeForwarding(peer); err != nil {
			return err
		}
	}
	subnet := n.routes.Via(rtnl.IPNet(n.pool.Subnet(peer.Number)), peer.Number, unix.RT_TABLE_MAIN)
	back := n.routes.Via(rtnl.AllAddresses(), peer.Number, rtnl.PeerTable(peer.Number))
	if err := errors.Join(n.links.RouteReplace(subnet), n.links.RouteReplace(back)); err != nil {
		return fmt.Errorf("set routes: %w", err)
	}
	return n.routes.AddRules(n.routes.IngressRule(peer.Number, rtnl.PeerTable(peer.Number)))
}

// removePeer undoes addPeer and removes every other route through the peer.
func (n *Network) removePeer(peer Peer) error {
	if err := n.routes.RemoveRules(
		func(rule netlink.Rule) bool { return rule.Table == rtnl.PeerTable(peer.Number) }); err != nil {
		return err
	}
	gateway := n.pool.NodeAddress(peer.Number)
	err := n.routes.RemoveRoutes(func(route netlink.Route) bool { return route.Gw.Equal(gateway.AsSlice()) })
	if err != nil {
		return err
	}
	for _, entry := range append(n.peerNeighbours(peer), n.forwardingEntry(peer)) {
		if err := n.links.NeighDel(entry); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove neighbour entry: %w", err)
		}
	}
	return nil
}

// peerNeighbours returns the permanent entries of a peer: its hardware address, and its location unless it
// is apart.
func (n *Network) peerNeighbours(peer Peer) []*netlink.Neigh {
	entries := []*netlink.Neigh{
		{LinkIndex: n.tunnel.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
			IP: net.IP(n.pool.NodeAddress(peer.Number).AsSlice()), HardwareAddr: pool.TunnelMAC(peer.Number)},
	}
	if !peer.Apart {
		entries = append(entries, n.forwardingEntry(peer))
	}
	return entries
}

// forwardingEntry returns the entry with the location of a peer's end of the tunnel.
func (n *Network) forwardingEntry(peer Peer) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: n.tunnel.Attrs().Index, Family: unix.AF_BRIDGE,
		State: netlink.NUD_PERMANENT,
		Flags: netlink.NTF_SELF, IP: net.IP(n.tunnelEndOf(peer).AsSlice()),
		HardwareAddr: pool.TunnelMAC(peer.Number)}
}

// removeForwarding stops sending to a peer.
func (n *Network) removeForwarding(peer Peer) error {
	if err := n.links.NeighDel(n.forwardingEntry(peer)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the forwarding entry: %w", err)
	}
	return nil
}

// recoverPeers reads the peers of an earlier process from the tunnel and the overlay, so that their packets
// are accepted until SetPeers is called.
func (n *Network) recoverPeers() error {
	entries, err := dump.Whole(func() ([]netlink.Neigh, error) {
		return n.links.NeighList(n.tunnel.Attrs().Index, unix.AF_BRIDGE)
	})
	if err != nil {
		return fmt.Errorf("list the peers of the tunnel: %w", err)
	}
	encrypted, err := n.overlayPeers()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		number, ours := pool.TunnelNumber(entry.HardwareAddr)
		end, ok := netip.AddrFromSlice(entry.IP)
		if !ours || !ok || number == n.config.NodeNumber || n.pool.CheckNumber(number) != nil {
			continue
		}
		peer := Peer{Number: number, Underlay: end.Unmap()}
		if n.overlay != nil {
			found := encrypted[n.pool.OverlayAddress(number)]
			peer.Underlay, peer.Key = found.Endpoint.Addr(), found.Key
			if peer.Underlay.Is4() != n.config.Underlay.Is4() { // this node's address was of the other family
				peer.Underlay = netip.Addr{}
			}
		}
		n.peers[number] = peer
	}
	n.filter.KnowPeers(n.filterPeers(n.peers))
	return nil
}
