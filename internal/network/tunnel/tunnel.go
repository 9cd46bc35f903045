package tunnel

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// Vni is the VXLAN network identifier.
const Vni = 7444

const (
	overheadIPv4 = 50 // Ethernet 14 + VXLAN 8 + UDP 8 + IPv4 20
	overheadIPv6 = 70 // the same with IPv6 40
)

// Device is the device of the tunnel to the other nodes.
const Device = "gw-vxlan"

// Config of a Tunnel.
type Config struct {
	NodeName  string
	Pool      pool.Pool
	Underlay  netip.Addr // this node's address, to which peers send the tunnel's packets
	Port      int        // UDP port of VXLAN; WireGuard uses the next port
	Overlay   Overlay
	MTU       int // if zero, derived from the underlay's interface
	RunDir    string
	StateDir  string // for the private key
	Namespace netns.NsHandle
	Links     *netlink.Handle // of the same namespace
}

// Peer is another node.
type Peer struct {
	Name     string     `json:"name"`
	Number   int        `json:"number"`
	Underlay netip.Addr `json:"underlay"`
	// Key is the peer's public key in the overlay. If it is zero, a known key is kept. Without a key,
	// nothing is sent to the peer.
	Key wireguard.Key `json:"key"`
	// Apart reports that the peer's overlay differs from this node's: nothing is sent to it or accepted
	// from it.
	Apart bool `json:"apart"`
}

// Tunnel connects this node with its peers. Everything but the peers is fixed once Open has returned.
type Tunnel struct {
	config   Config
	routes   rtnl.Routes
	underlay netlink.Link      // the interface with the node's underlay address
	overlay  *wireguard.Device // nil: packets between nodes are not encrypted
	key      wireguard.Key     // this node's private key
	public   wireguard.Key     // the public key for it
	device   netlink.Link
	mtu      int

	mu    sync.Mutex
	peers map[int]Peer // by number; replaced as a whole
}

// New makes nothing yet.
func New(config Config) *Tunnel {
	return &Tunnel{config: config, routes: rtnl.Routes{Links: config.Links, Pool: config.Pool},
		peers: map[int]Peer{}}
}

// Find finds the interface with the underlay address, and describes the overlay.
func (t *Tunnel) Find() error { return errors.Join(t.findUnderlay(), t.openOverlay()) }

// Open makes the tunnel, and takes over the peers of an earlier process, so that their packets are accepted
// until SetPeers is called. Find comes first.
func (t *Tunnel) Open() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.bringUpTunnel(); err != nil {
		return err
	}
	return t.recoverPeers()
}

// Remove removes the overlay's device. The caller removes the others, by their group.
func (t *Tunnel) Remove() error { return t.overlayDevice().Remove() }

// UnderlayDevice is the interface with the underlay address.
func (t *Tunnel) UnderlayDevice() string { return t.underlay.Attrs().Name }

// Index of the tunnel's device.
func (t *Tunnel) Index() int { return t.device.Attrs().Index }

// MTU of the tunnel, and so of new containers.
func (t *Tunnel) MTU() int { return t.mtu }

// Peers returns the peers by their numbers. The map must not be changed.
func (t *Tunnel) Peers() map[int]Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers
}

// SetPeers replaces the peers by a list from CheckPeers, with the routes to them. The packet filter must know
// them already.
func (t *Tunnel) SetPeers(wanted map[int]Peer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.peers
	t.peers = wanted
	for number, peer := range old {
		if _, keep := wanted[number]; !keep {
			if err := t.removePeer(peer); err != nil {
				return fmt.Errorf("forget peer %s (node %d): %w", peer.Name, number, err)
			}
		}
	}
	if err := t.applyOverlay(); err != nil {
		return err
	}
	for _, peer := range wanted {
		if err := t.addPeer(peer); err != nil {
			return fmt.Errorf("set up peer %s (node %d at %s): %w", peer.Name, peer.Number, peer.Underlay,
				err)
		}
	}
	return nil
}

// bringUpTunnel makes the VXLAN device, or takes over an existing one with the right settings.
func (t *Tunnel) bringUpTunnel() error {
	mtu, err := t.tunnelMTU()
	if err != nil {
		return err
	}
	number := t.config.Pool.Number
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU, attributes.Group = Device, mtu, pool.GroupTunnel
	attributes.HardwareAddr = pool.TunnelMAC(number)
	wanted := &netlink.Vxlan{
		LinkAttrs: attributes, VxlanId: Vni, SrcAddr: t.tunnelEnd().AsSlice(), Port: t.config.Port,
		UDPCSum: true,
	}
	if err := t.makeTunnel(wanted); err != nil {
		return err
	}
	link, err := t.config.Links.LinkByName(Device)
	if err != nil {
		return fmt.Errorf("find the tunnel %s: %w", Device, err)
	}
	if err := namespace.Within(t.config.Namespace, func() error {
		return namespace.DeviceSysctls(Device)
	}); err != nil {
		return fmt.Errorf("prepare the tunnel: %w", err)
	}
	own := &netlink.Addr{IPNet: rtnl.HostNet(t.config.Pool.NodeAddress(number)),
		Scope: unix.RT_SCOPE_UNIVERSE}
	err = errors.Join(t.config.Links.LinkSetMTU(link, mtu), t.config.Links.AddrReplace(link, own),
		t.config.Links.LinkSetUp(link))
	if t.config.encrypted() {
		// Not on the overlay's device: a release without encryption does not know that device, and would
		// take an address of the pool there for another program's.
		end := &netlink.Addr{IPNet: rtnl.HostNet(t.tunnelEnd()), Scope: unix.RT_SCOPE_UNIVERSE}
		err = errors.Join(err, t.config.Links.AddrReplace(link, end))
	}
	if err != nil {
		return fmt.Errorf("configure the tunnel %s: %w", Device, err)
	}
	t.device, t.mtu, t.routes.Tunnel = link, mtu, link.Attrs().Index
	return nil
}

// makeTunnel creates the device unless an equal one exists.
func (t *Tunnel) makeTunnel(wanted *netlink.Vxlan) error {
	found, err := t.config.Links.LinkByName(Device)
	if err != nil && !rtnl.IsLinkNotFound(err) {
		return fmt.Errorf("look for the tunnel %s: %w", Device, err)
	}
	if err == nil {
		old, ok := found.(*netlink.Vxlan)
		if ok && old.VxlanId == wanted.VxlanId && old.Port == wanted.Port &&
			old.SrcAddr.Equal(wanted.SrcAddr) &&
			bytes.Equal(old.HardwareAddr, wanted.HardwareAddr) && old.Attrs().Group == pool.GroupTunnel &&
			!old.Learning {
			return nil
		}
		if err := t.config.Links.LinkDel(found); err != nil {
			return fmt.Errorf("remove a tunnel %s that has another configuration: %w", Device, err)
		}
	}
	if err := t.config.Links.LinkAdd(wanted); err != nil {
		return fmt.Errorf("make the tunnel %s (VXLAN %d, UDP port %d, from %s): %w; is another VXLAN "+
			"device using the port?",
			Device, Vni, wanted.Port, t.config.Underlay, err)
	}
	return nil
}

// findUnderlay finds the interface that has the underlay address.
func (t *Tunnel) findUnderlay() error {
	addresses, err := rtnl.AddressesOf(t.config.Links, nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, address := range addresses {
		if ip, ok := netip.AddrFromSlice(address.IP); !ok || ip.Unmap() != t.config.Underlay {
			continue
		}
		if t.underlay, err = t.config.Links.LinkByIndex(address.LinkIndex); err != nil {
			return fmt.Errorf("find the interface of underlay address %s: %w", t.config.Underlay, err)
		}
		return nil
	}
	return fmt.Errorf("underlay address %s is %w: no interface of this node has it", t.config.Underlay,
		pool.ErrInvalid)
}

// tunnelMTU is the MTU that remains of the underlay's interface.
func (t *Tunnel) tunnelMTU() (int, error) {
	link := t.underlay.Attrs()
	most := min(link.MTU, pool.MaxMTU) - t.config.overhead()
	switch {
	case t.config.MTU > most || most < pool.MinMTU:
		return 0, fmt.Errorf("MTU %d is %w: interface %s of underlay address %s leaves %d of its %d bytes",
			t.config.MTU, pool.ErrInvalid, link.Name, t.config.Underlay, most, link.MTU)
	case t.config.MTU != 0:
		return t.config.MTU, nil
	}
	return most, nil
}

// Consistent leaves out peers that SetPeers would refuse because they contradict this node or another peer,
// such as a peer with the underlay address of another. What one node says about itself must not keep other
// peers from being set, or removed nodes from being forgotten. Peers that are already set take precedence,
// then lower numbers over higher ones.
func (t *Tunnel) Consistent(peers []Peer) (kept []Peer, contradictions []error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	isSet := func(p Peer) bool { return t.peers[p.Number].Underlay == p.Underlay.Unmap() }
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
		if _, err := t.CheckPeers(append(slices.Clone(kept), peer)); err != nil {
			contradictions = append(contradictions, err)
			continue
		}
		kept = append(kept, peer)
	}
	return kept, contradictions
}

// CheckPeers refuses a list that contradicts itself or this node.
func (t *Tunnel) CheckPeers(peers []Peer) (map[int]Peer, error) {
	wanted := map[int]Peer{}
	names := map[string]bool{t.config.NodeName: true}
	underlays := map[netip.Addr]bool{t.config.Underlay: true}
	keys := map[wireguard.Key]bool{}
	for _, peer := range peers {
		peer.Underlay = peer.Underlay.Unmap()
		if err := t.config.Pool.CheckNumber(peer.Number); err != nil {
			return nil, fmt.Errorf("peer %s: %w", peer.Name, err)
		}
		_, twice := wanted[peer.Number]
		switch {
		case peer.Name == "" || names[peer.Name]:
			return nil, fmt.Errorf("peer name %q is %w: it is empty, used twice, or this node's own",
				peer.Name, pool.ErrInvalid)
		case twice || peer.Number == t.config.Pool.Number:
			return nil, fmt.Errorf("number %d of peer %s is %w: another node has it", peer.Number, peer.Name,
				pool.ErrInvalid)
		case !peer.Underlay.IsValid() || peer.Underlay.Is4() != t.config.Underlay.Is4() ||
			peer.Underlay.IsUnspecified() ||
			peer.Underlay.IsMulticast() || underlays[peer.Underlay] ||
			t.config.Pool.Prefix.Contains(peer.Underlay):
			return nil, fmt.Errorf("underlay address %s of peer %s is %w: it must be another node's, "+
				"outside %s, and of the kind of %s",
				peer.Underlay, peer.Name, pool.ErrInvalid, t.config.Pool.Prefix, t.config.Underlay)
		}
		if !peer.Key.IsZero() && keys[peer.Key] {
			return nil, fmt.Errorf("key %s of peer %s is %w: another node has it",
				peer.Key, peer.Name, pool.ErrInvalid)
		}
		wanted[peer.Number], names[peer.Name], underlays[peer.Underlay] = peer, true, true
		keys[peer.Key] = true
	}
	return wanted, nil
}

// addPeer makes the tunnel's entries for a peer, and the routes through the peer.
func (t *Tunnel) addPeer(peer Peer) error {
	for _, entry := range t.peerNeighbours(peer) {
		if err := t.config.Links.NeighSet(entry); err != nil {
			return fmt.Errorf("set neighbour entry: %w", err)
		}
	}
	if peer.Apart {
		if err := t.removeForwarding(peer); err != nil {
			return err
		}
	}
	subnet := t.routes.Via(rtnl.IPNet(t.config.Pool.Subnet(peer.Number)), peer.Number, unix.RT_TABLE_MAIN)
	back := t.routes.Via(rtnl.AllAddresses(), peer.Number, rtnl.PeerTable(peer.Number))
	if err := errors.Join(t.config.Links.RouteReplace(subnet),
		t.config.Links.RouteReplace(back)); err != nil {
		return fmt.Errorf("set routes: %w", err)
	}
	return t.routes.AddRules(t.routes.IngressRule(peer.Number, rtnl.PeerTable(peer.Number)))
}

// removePeer undoes addPeer and removes every other route through the peer.
func (t *Tunnel) removePeer(peer Peer) error {
	if err := t.routes.RemoveRules(
		func(rule netlink.Rule) bool { return rule.Table == rtnl.PeerTable(peer.Number) }); err != nil {
		return err
	}
	gateway := t.config.Pool.NodeAddress(peer.Number)
	err := t.routes.RemoveRoutes(func(route netlink.Route) bool { return route.Gw.Equal(gateway.AsSlice()) })
	if err != nil {
		return err
	}
	for _, entry := range append(t.peerNeighbours(peer), t.forwardingEntry(peer)) {
		if err := t.config.Links.NeighDel(entry); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove neighbour entry: %w", err)
		}
	}
	return nil
}

// peerNeighbours returns the permanent entries of a peer: its hardware address, and its location unless it
// is apart.
func (t *Tunnel) peerNeighbours(peer Peer) []*netlink.Neigh {
	entries := []*netlink.Neigh{
		{LinkIndex: t.device.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
			IP:           net.IP(t.config.Pool.NodeAddress(peer.Number).AsSlice()),
			HardwareAddr: pool.TunnelMAC(peer.Number)},
	}
	if !peer.Apart {
		entries = append(entries, t.forwardingEntry(peer))
	}
	return entries
}

// forwardingEntry returns the entry with the location of a peer's end of the tunnel.
func (t *Tunnel) forwardingEntry(peer Peer) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: t.device.Attrs().Index, Family: unix.AF_BRIDGE,
		State: netlink.NUD_PERMANENT,
		Flags: netlink.NTF_SELF, IP: net.IP(t.End(peer).AsSlice()),
		HardwareAddr: pool.TunnelMAC(peer.Number)}
}

// removeForwarding stops sending to a peer.
func (t *Tunnel) removeForwarding(peer Peer) error {
	if err := t.config.Links.NeighDel(t.forwardingEntry(peer)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the forwarding entry: %w", err)
	}
	return nil
}

// recoverPeers reads the peers of an earlier process from the tunnel and the overlay, so that their packets
// are accepted until SetPeers is called.
func (t *Tunnel) recoverPeers() error {
	entries, err := dump.Whole(func() ([]netlink.Neigh, error) {
		return t.config.Links.NeighList(t.device.Attrs().Index, unix.AF_BRIDGE)
	})
	if err != nil {
		return fmt.Errorf("list the peers of the tunnel: %w", err)
	}
	encrypted, err := t.overlayPeers()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		number, ours := pool.TunnelNumber(entry.HardwareAddr)
		end, ok := netip.AddrFromSlice(entry.IP)
		if !ours || !ok || number == t.config.Pool.Number || t.config.Pool.CheckNumber(number) != nil {
			continue
		}
		peer := Peer{Number: number, Underlay: end.Unmap()}
		if t.overlay != nil {
			found := encrypted[t.config.Pool.OverlayAddress(number)]
			peer.Underlay, peer.Key = found.Endpoint.Addr(), found.Key
			if peer.Underlay.Is4() != t.config.Underlay.Is4() { // this node's address was of the other family
				peer.Underlay = netip.Addr{}
			}
		}
		t.peers[number] = peer
	}
	return nil
}
