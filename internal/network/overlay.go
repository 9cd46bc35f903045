package network

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// Overlay says how containers' packets travel between nodes. All overlays carry VXLAN.
type Overlay string

// The overlays. All but the last are compatible with each other: they differ only in how they encrypt.
const (
	OverlayAuto      Overlay = "auto"      // WireGuard by the kernel, or by a process if the kernel has none
	OverlayWireGuard Overlay = "wireguard" // WireGuard by the kernel
	OverlayUserspace Overlay = "userspace" // WireGuard by a process
	// in the clear: anybody who can send packets with a peer's address gets in
	OverlayVXLAN Overlay = "vxlan"
)

// ParseOverlay parses a user's choice.
func ParseOverlay(text string) (Overlay, error) {
	known := []Overlay{OverlayAuto, OverlayWireGuard, OverlayUserspace, OverlayVXLAN}
	if slices.Contains(known, Overlay(text)) {
		return Overlay(text), nil
	}
	return "", fmt.Errorf("overlay %.40q is %w: it must be auto, wireguard, userspace or vxlan",
		text, ErrInvalid)
}

// Kind is the part on which two nodes must agree: "wireguard" or "vxlan".
func (o Overlay) Kind() string {
	if o == OverlayVXLAN {
		return string(OverlayVXLAN)
	}
	return string(OverlayWireGuard)
}

// way returns whether the kernel or a process encrypts.
func (o Overlay) way() wireguard.Way {
	switch o {
	case OverlayWireGuard:
		return wireguard.Kernel
	case OverlayUserspace:
		return wireguard.Userspace
	}
	return wireguard.Auto
}

// OverlayDevice is the device that encrypts the tunnel's packets. It exists while this node has a peer.
const OverlayDevice = "gw-wireguard"

// encrypted reports whether the overlay is encrypted.
func (c Config) encrypted() bool { return c.Overlay != OverlayVXLAN }

// wireguardOverhead is the size that encryption adds to a packet: 32 bytes of WireGuard, 8 of UDP, and the
// IP header.
func (c Config) wireguardOverhead() int {
	if c.Underlay.Is6() {
		return 80
	}
	return 60
}

// overhead is the size of all headers between containers' packets and the wire. In an encrypted overlay,
// VXLAN runs between addresses of the pool.
func (c Config) overhead() int {
	switch {
	case c.encrypted():
		return overheadIPv4 + c.wireguardOverhead()
	case c.Underlay.Is6():
		return overheadIPv6
	}
	return overheadIPv4
}

// tunnelEnd returns the address of this node's end of the tunnel.
func (n *Network) tunnelEnd() netip.Addr {
	return n.tunnelEndOf(Peer{Number: n.config.NodeNumber, Underlay: n.config.Underlay})
}

// tunnelEndOf returns the address of a peer's end of the tunnel.
func (n *Network) tunnelEndOf(peer Peer) netip.Addr {
	if n.config.encrypted() {
		return n.pool.OverlayAddress(peer.Number)
	}
	return peer.Underlay
}

// wireguardPort is the UDP port of WireGuard. VXLAN keeps the port that it has without encryption, although
// it is not on the wire then: WireGuard's device keeps running when a release without WireGuard takes over.
func (c Config) wireguardPort() int { return c.Port + 1 }

// openOverlay describes the device, and removes the device of an agent with another setting.
func (n *Network) openOverlay() error {
	device := n.overlayDevice()
	if !n.config.encrypted() {
		return device.Remove()
	}
	key, err := wireguard.LoadKey(filepath.Join(n.config.StateDir, "wireguard.key"))
	if err != nil {
		return err
	}
	public, err := key.Public()
	if err != nil {
		return err
	}
	n.key, n.public, n.overlay = key, public, device
	return nil
}

func (n *Network) overlayDevice() *wireguard.Device {
	config := wireguard.Config{
		Name: OverlayDevice, Way: n.config.Overlay.way(), Links: n.links,
		Within: func(run func() error) error { return namespace.Within(n.ns, run) },
		Group:  pool.GroupOverlay,
		Socket: filepath.Join(n.config.RunDir, "wireguard.sock"),
		Log:    filepath.Join(n.config.RunDir, "wireguard.log"),
	}
	if n.underlay != nil {
		config.MTU = min(n.underlay.Attrs().MTU, pool.MaxMTU) - n.config.wireguardOverhead()
	}
	return wireguard.New(config)
}

// PublicKey returns the key by which other nodes know this one; zero if the overlay is not encrypted.
func (n *Network) PublicKey() (wireguard.Key, error) {
	if n.overlay == nil {
		return wireguard.Key{}, nil
	}
	return n.public, nil
}

// KeyProof is wireguard.Key.Proof with this node's key.
func (n *Network) KeyProof(other wireguard.Key, from, to string) ([]byte, error) {
	return n.key.Proof(other, from, to)
}

// Keys returns the peers' keys, by number: at first those that an earlier process had set.
func (n *Network) Keys() map[int]wireguard.Key {
	n.mu.Lock()
	defer n.mu.Unlock()
	keys := map[int]wireguard.Key{}
	for number, peer := range n.peers {
		if !peer.Key.IsZero() {
			keys[number] = peer.Key
		}
	}
	return keys
}

// applyOverlay configures the device for the current peers, and makes the routes to their ends of the
// tunnel.
func (n *Network) applyOverlay() error {
	if n.overlay == nil {
		return nil
	}
	state := wireguard.State{Private: n.key, Port: n.config.wireguardPort()}
	for _, peer := range n.peers {
		if peer.Key.IsZero() {
			continue
		}
		one := wireguard.Peer{Key: peer.Key, Address: n.pool.OverlayAddress(peer.Number)}
		if peer.Underlay.IsValid() {
			one.Endpoint = netip.AddrPortFrom(peer.Underlay, uint16(n.config.wireguardPort()))
		}
		state.Peers = append(state.Peers, one)
	}
	if err := n.overlay.Apply(state); err != nil {
		return fmt.Errorf("encrypt what goes to other nodes: %w", err)
	}
	if len(state.Peers) == 0 {
		return nil
	}
	return n.routeOverlay(state.Peers)
}

// routeOverlay makes the routes to the peers' ends of the tunnel, and removes all others.
func (n *Network) routeOverlay(peers []wireguard.Peer) error {
	link, err := n.links.LinkByName(OverlayDevice)
	if err != nil {
		return fmt.Errorf("find device %s: %w", OverlayDevice, err)
	}
	if err := namespace.Within(n.ns, func() error {
		return namespace.DisableIPv6(OverlayDevice)
	}); err != nil {
		return fmt.Errorf("prepare device %s: %w", OverlayDevice, err)
	}
	err = n.routes.RemoveRoutes(func(route netlink.Route) bool {
		to, _ := rtnl.PrefixOf(route.Dst)
		return n.toOverlay(route) &&
			!slices.ContainsFunc(peers, func(p wireguard.Peer) bool { return p.Address == to.Addr() })
	})
	for _, peer := range peers {
		route := &netlink.Route{Dst: rtnl.HostNet(peer.Address), Table: unix.RT_TABLE_MAIN,
			Protocol: pool.RouteProtocol,
			Scope:    unix.RT_SCOPE_LINK, LinkIndex: link.Attrs().Index, Src: n.tunnelEnd().AsSlice()}
		if failed := n.links.RouteReplace(route); failed != nil {
			err = errors.Join(err, fmt.Errorf("route to %s by %s: %w", peer.Address, OverlayDevice, failed))
		}
	}
	return err
}

// toOverlay reports whether a route leads to a node's end of the tunnel.
func (n *Network) toOverlay(route netlink.Route) bool {
	to, ok := rtnl.PrefixOf(route.Dst)
	return ok && n.overlay != nil && to.IsSingleIP() && n.config.Pool.Contains(to.Addr()) &&
		to.Addr().As4()[3] == 255
}

// KeepOverlay makes the device again if it has gone: its process may have been killed.
func (n *Network) KeepOverlay() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.overlay == nil || !slices.ContainsFunc(n.peerList(), func(p Peer) bool { return !p.Key.IsZero() }) {
		return nil
	}
	link, err := n.links.LinkByName(OverlayDevice)
	if err == nil && link.Attrs().Flags&unix.IFF_UP != 0 {
		return nil
	}
	return n.applyOverlay()
}

// peerList lists the peers.
func (n *Network) peerList() []Peer {
	peers := make([]Peer, 0, len(n.peers))
	for _, peer := range n.peers {
		peers = append(peers, peer)
	}
	return peers
}

// overlayPeers returns the peers of the device that an earlier process left, by their ends of the tunnel.
func (n *Network) overlayPeers() (map[netip.Addr]wireguard.Peer, error) {
	found := map[netip.Addr]wireguard.Peer{}
	if n.overlay == nil {
		return found, nil
	}
	peers, err := n.overlay.Peers()
	for _, peer := range peers {
		found[peer.Address] = peer
	}
	return found, err
}

// OverlayStatus describes how packets travel to other nodes.
type OverlayStatus struct {
	Kind string // see Overlay.Kind
	Way  string // "kernel" or "userspace"; "" while there is no peer, or in the clear
}

// String returns the status in one line.
func (s OverlayStatus) String() string {
	switch s.Way {
	case string(wireguard.Kernel):
		return s.Kind + " (kernel)"
	case string(wireguard.Userspace):
		return s.Kind + " (process)"
	}
	return s.Kind
}

// OverlayKind returns the kind on which this node and its peers must agree.
func (n *Network) OverlayKind() string { return n.config.Overlay.Kind() }

// OverlayStatus returns how packets currently travel to other nodes.
func (n *Network) OverlayStatus() (OverlayStatus, error) {
	status := OverlayStatus{Kind: n.config.Overlay.Kind()}
	if n.overlay == nil {
		return status, nil
	}
	way, err := n.overlay.Current()
	status.Way = string(way)
	return status, err
}
