package tunnel

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
		text, pool.ErrInvalid)
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
func (t *Tunnel) tunnelEnd() netip.Addr {
	return t.End(Peer{Number: t.config.Pool.Number, Underlay: t.config.Underlay})
}

// End returns the address of a peer's end of the tunnel.
func (t *Tunnel) End(peer Peer) netip.Addr {
	if t.config.encrypted() {
		return t.config.Pool.OverlayAddress(peer.Number)
	}
	return peer.Underlay
}

// wireguardPort is the UDP port of WireGuard. VXLAN keeps the port that it has without encryption, although
// it is not on the wire then: WireGuard's device keeps running when a release without WireGuard takes over.
func (c Config) wireguardPort() int { return c.Port + 1 }

// OverlayPort is the UDP port of WireGuard.
func (t *Tunnel) OverlayPort() int { return t.config.wireguardPort() }

// openOverlay describes the device, and removes the device of an agent with another setting.
func (t *Tunnel) openOverlay() error {
	device := t.overlayDevice()
	if !t.config.encrypted() {
		return device.Remove()
	}
	key, err := wireguard.LoadKey(filepath.Join(t.config.StateDir, "wireguard.key"))
	if err != nil {
		return err
	}
	public, err := key.Public()
	if err != nil {
		return err
	}
	t.key, t.public, t.overlay = key, public, device
	return nil
}

func (t *Tunnel) overlayDevice() *wireguard.Device {
	config := wireguard.Config{
		Name: OverlayDevice, Way: t.config.Overlay.way(), Links: t.config.Links,
		Within: func(run func() error) error { return namespace.Within(t.config.Namespace, run) },
		Group:  pool.GroupOverlay,
		Socket: filepath.Join(t.config.RunDir, "wireguard.sock"),
		Log:    filepath.Join(t.config.RunDir, "wireguard.log"),
	}
	if t.underlay != nil {
		config.MTU = min(t.underlay.Attrs().MTU, pool.MaxMTU) - t.config.wireguardOverhead()
	}
	return wireguard.New(config)
}

// PublicKey returns the key by which other nodes know this one; zero if the overlay is not encrypted.
func (t *Tunnel) PublicKey() (wireguard.Key, error) {
	if t.overlay == nil {
		return wireguard.Key{}, nil
	}
	return t.public, nil
}

// KeyProof is wireguard.Key.Proof with this node's key.
func (t *Tunnel) KeyProof(other wireguard.Key, from, to string) ([]byte, error) {
	return t.key.Proof(other, from, to)
}

// Keys returns the peers' keys, by number: at first those that an earlier process had set.
func (t *Tunnel) Keys() map[int]wireguard.Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := map[int]wireguard.Key{}
	for number, peer := range t.peers {
		if !peer.Key.IsZero() {
			keys[number] = peer.Key
		}
	}
	return keys
}

// applyOverlay configures the device for the current peers, and makes the routes to their ends of the
// tunnel.
func (t *Tunnel) applyOverlay() error {
	if t.overlay == nil {
		return nil
	}
	state := wireguard.State{Private: t.key, Port: t.config.wireguardPort()}
	for _, peer := range t.peers {
		if peer.Key.IsZero() {
			continue
		}
		one := wireguard.Peer{Key: peer.Key, Address: t.config.Pool.OverlayAddress(peer.Number)}
		if peer.Underlay.IsValid() {
			one.Endpoint = netip.AddrPortFrom(peer.Underlay, uint16(t.config.wireguardPort()))
		}
		state.Peers = append(state.Peers, one)
	}
	if err := t.overlay.Apply(state); err != nil {
		return fmt.Errorf("encrypt what goes to other nodes: %w", err)
	}
	if len(state.Peers) == 0 {
		return nil
	}
	return t.routeOverlay(state.Peers)
}

// routeOverlay makes the routes to the peers' ends of the tunnel, and removes all others.
func (t *Tunnel) routeOverlay(peers []wireguard.Peer) error {
	link, err := t.config.Links.LinkByName(OverlayDevice)
	if err != nil {
		return fmt.Errorf("find device %s: %w", OverlayDevice, err)
	}
	if err := namespace.Within(t.config.Namespace, func() error {
		return namespace.DisableIPv6(OverlayDevice)
	}); err != nil {
		return fmt.Errorf("prepare device %s: %w", OverlayDevice, err)
	}
	err = t.routes.RemoveRoutes(func(route netlink.Route) bool {
		to, _ := rtnl.PrefixOf(route.Dst)
		return t.ToOverlay(route) &&
			!slices.ContainsFunc(peers, func(p wireguard.Peer) bool { return p.Address == to.Addr() })
	})
	for _, peer := range peers {
		route := &netlink.Route{Dst: rtnl.HostNet(peer.Address), Table: unix.RT_TABLE_MAIN,
			Protocol: pool.RouteProtocol,
			Scope:    unix.RT_SCOPE_LINK, LinkIndex: link.Attrs().Index, Src: t.tunnelEnd().AsSlice()}
		if failed := t.config.Links.RouteReplace(route); failed != nil {
			err = errors.Join(err, fmt.Errorf("route to %s by %s: %w", peer.Address, OverlayDevice, failed))
		}
	}
	return err
}

// ToOverlay reports whether a route leads to a node's end of the tunnel.
func (t *Tunnel) ToOverlay(route netlink.Route) bool {
	to, ok := rtnl.PrefixOf(route.Dst)
	return ok && t.overlay != nil && to.IsSingleIP() && t.config.Pool.Prefix.Contains(to.Addr()) &&
		to.Addr().As4()[3] == 255
}

// KeepOverlay makes the device again if it has gone: its process may have been killed.
func (t *Tunnel) KeepOverlay() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.overlay == nil || !slices.ContainsFunc(t.peerList(), func(p Peer) bool { return !p.Key.IsZero() }) {
		return nil
	}
	link, err := t.config.Links.LinkByName(OverlayDevice)
	if err == nil && link.Attrs().Flags&unix.IFF_UP != 0 {
		return nil
	}
	return t.applyOverlay()
}

// peerList lists the peers.
func (t *Tunnel) peerList() []Peer {
	peers := make([]Peer, 0, len(t.peers))
	for _, peer := range t.peers {
		peers = append(peers, peer)
	}
	return peers
}

// overlayPeers returns the peers of the device that an earlier process left, by their ends of the tunnel.
func (t *Tunnel) overlayPeers() (map[netip.Addr]wireguard.Peer, error) {
	found := map[netip.Addr]wireguard.Peer{}
	if t.overlay == nil {
		return found, nil
	}
	peers, err := t.overlay.Peers()
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
func (t *Tunnel) OverlayKind() string { return t.config.Overlay.Kind() }

// OverlayStatus returns how packets currently travel to other nodes.
func (t *Tunnel) OverlayStatus() (OverlayStatus, error) {
	status := OverlayStatus{Kind: t.config.Overlay.Kind()}
	if t.overlay == nil {
		return status, nil
	}
	way, err := t.overlay.Current()
	status.Way = string(way)
	return status, err
}
