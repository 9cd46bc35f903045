package network

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/godwit/godwit/internal/network/bridge"
	"github.com/godwit/godwit/internal/network/filter"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/tunnel"
)

// Errors that callers act on; they come wrapped with the cause, the object and a remedy.
var (
	ErrInvalid      = pool.ErrInvalid
	ErrUnknownPeer  = pool.ErrUnknownPeer
	ErrNotAttached  = pool.ErrNotAttached
	ErrEnded        = pool.ErrEnded
	ErrHeld         = pool.ErrHeld
	ErrNoAddress    = pool.ErrNoAddress
	ErrAddressTaken = pool.ErrAddressTaken
)

// Address is the address that a container keeps for life.
type Address = pool.Address

// Peer is another node.
type Peer = tunnel.Peer

// Overlay says how containers' packets travel between nodes.
type Overlay = tunnel.Overlay

// The overlays: see package tunnel.
const (
	OverlayAuto      = tunnel.OverlayAuto
	OverlayWireGuard = tunnel.OverlayWireGuard
	OverlayUserspace = tunnel.OverlayUserspace
	OverlayVXLAN     = tunnel.OverlayVXLAN
)

// RoutedNetwork is a network of an engine that all nodes have, each with a bridge of its own.
type RoutedNetwork = bridge.RoutedNetwork

// Published is a port of a node through which a container of this node is reached.
type Published = filter.Published

// Lease is an address of this node's subnet that a container holds, wherever it runs.
type Lease = pool.Lease

const (
	defaultPort     = 7444 // UDP port for packets between nodes
	defaultHoldSize = 64 << 20
)

// Config of a node's network.
type Config struct {
	NodeName   string
	NodeNumber int          // from 1; unique in the cluster
	Pool       netip.Prefix // of all containers' addresses
	Underlay   netip.Addr   // this node's address, to which peers send the tunnel's packets
	// UDP port of VXLAN, the same on all nodes; 7444 if zero. WireGuard uses the next port
	Port      int
	Overlay   tunnel.Overlay // how packets go between nodes; OverlayAuto if empty
	MTU       int            // of containers; if zero, derived from the underlay's interface
	RunDir    string         // network namespaces are mounted below this directory
	StateDir  string         // for leases
	Namespace string         // path of the network namespace to use; the calling thread's if empty
	HoldBytes int64          // limit of one hold's queue; 64 MiB if zero
	Log       *slog.Logger   // for problems that do not stop the node; nowhere if nil
}

// withDefaults fills in missing values and refuses values that cannot work.
func (c Config) withDefaults() (_ Config, err error) {
	if c.Port == 0 {
		c.Port = defaultPort
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.HoldBytes == 0 {
		c.HoldBytes = defaultHoldSize
	}
	c.Underlay = c.Underlay.Unmap()
	switch {
	case !c.Pool.Addr().Is4() || c.Pool.Bits() < 8 || c.Pool.Bits() >= pool.SubnetBits ||
		c.Pool != c.Pool.Masked():
		return c, fmt.Errorf("pool %s is %w: it must be an IPv4 prefix of 8 to 23 bits, such as 10.57.0.0/16",
			c.Pool, pool.ErrInvalid)
	case c.NodeName == "":
		return c, fmt.Errorf("node name is %w: it must not be empty", pool.ErrInvalid)
	case !c.Underlay.IsValid() || c.Underlay.IsUnspecified() || c.Underlay.IsMulticast() ||
		c.Pool.Contains(c.Underlay):
		return c, fmt.Errorf("underlay address %s is %w: it must be an address of this node outside %s",
			c.Underlay, pool.ErrInvalid, c.Pool)
	case c.Port < 1 || c.Port > 65534:
		return c, fmt.Errorf("overlay port %d is %w: it must be from 1 to 65534", c.Port, pool.ErrInvalid)
	case c.MTU != 0 && (c.MTU < pool.MinMTU || c.MTU > pool.MaxMTU):
		return c, fmt.Errorf("MTU %d is %w: it must be from %d to %d", c.MTU, pool.ErrInvalid, pool.MinMTU,
			pool.MaxMTU)
	case c.HoldBytes < 1<<16:
		return c, fmt.Errorf("hold limit of %d bytes is %w: it must be at least 64 KiB", c.HoldBytes,
			pool.ErrInvalid)
	case !filepath.IsAbs(c.RunDir) || !filepath.IsAbs(c.StateDir):
		return c, fmt.Errorf("run directory %q or state directory %q is %w: both must be absolute", c.RunDir,
			c.StateDir, pool.ErrInvalid)
	}
	if c.Overlay, err = tunnel.ParseOverlay(string(cmp.Or(c.Overlay, tunnel.OverlayAuto))); err != nil {
		return c, err
	}
	return c, c.pool().CheckNumber(c.NodeNumber)
}

// pool returns the addresses and numbers of the pool, as this node sees them.
func (c Config) pool() pool.Pool { return pool.Pool{Prefix: c.Pool, Number: c.NodeNumber} }
