package network

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/godwit/godwit/internal/network/wireguard"
)

// Errors that callers act on; they come wrapped with the cause, the object and a remedy.
var (
	ErrInvalid      = errors.New("invalid")
	ErrUnknownPeer  = errors.New("no such peer")
	ErrNotAttached  = errors.New("container is not attached to the network of this node")
	ErrEnded        = errors.New("the container's connection has ended: its engine has removed it")
	ErrHeld         = errors.New("address is held")
	ErrNoAddress    = errors.New("no address is free")
	ErrAddressTaken = errors.New("address is taken")
)

const (
	subnetBits      = 24    // each node owns one /24 of the pool
	maxNodeNumber   = 0xfff // 12 bits of a packet mark
	defaultPort     = 7444  // UDP port for packets between nodes
	vni             = 7444  // VXLAN network identifier
	minMTU          = 576   // RFC 791: every host must accept this much
	maxMTU          = 65535 // of IPv4
	overheadIPv4    = 50    // Ethernet 14 + VXLAN 8 + UDP 8 + IPv4 20
	overheadIPv6    = 70    // the same with IPv6 40
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
	Overlay   Overlay      // how packets go between nodes; OverlayAuto if empty
	MTU       int          // of containers; if zero, derived from the underlay's interface
	RunDir    string       // network namespaces are mounted below this directory
	StateDir  string       // for leases
	Namespace string       // path of the network namespace to use; the calling thread's if empty
	HoldBytes int64        // limit of one hold's queue; 64 MiB if zero
	Log       *slog.Logger // for problems that do not stop the node; nowhere if nil
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

// Address is the address that a container keeps for life.
type Address struct {
	IP  netip.Addr `json:"ip"`
	MAC string     `json:"mac"`
	MTU int        `json:"mtu"`
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
	case !c.Pool.Addr().Is4() || c.Pool.Bits() < 8 || c.Pool.Bits() >= subnetBits ||
		c.Pool != c.Pool.Masked():
		return c, fmt.Errorf("pool %s is %w: it must be an IPv4 prefix of 8 to 23 bits, such as 10.57.0.0/16",
			c.Pool, ErrInvalid)
	case c.NodeName == "":
		return c, fmt.Errorf("node name is %w: it must not be empty", ErrInvalid)
	case !c.Underlay.IsValid() || c.Underlay.IsUnspecified() || c.Underlay.IsMulticast() ||
		c.Pool.Contains(c.Underlay):
		return c, fmt.Errorf("underlay address %s is %w: it must be an address of this node outside %s",
			c.Underlay, ErrInvalid, c.Pool)
	case c.Port < 1 || c.Port > 65534:
		return c, fmt.Errorf("overlay port %d is %w: it must be from 1 to 65534", c.Port, ErrInvalid)
	case c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU):
		return c, fmt.Errorf("MTU %d is %w: it must be from %d to %d", c.MTU, ErrInvalid, minMTU, maxMTU)
	case c.HoldBytes < 1<<16:
		return c, fmt.Errorf("hold limit of %d bytes is %w: it must be at least 64 KiB", c.HoldBytes,
			ErrInvalid)
	case !filepath.IsAbs(c.RunDir) || !filepath.IsAbs(c.StateDir):
		return c, fmt.Errorf("run directory %q or state directory %q is %w: both must be absolute", c.RunDir,
			c.StateDir, ErrInvalid)
	}
	if c.Overlay, err = ParseOverlay(string(cmp.Or(c.Overlay, OverlayAuto))); err != nil {
		return c, err
	}
	return c, c.checkNumber(c.NodeNumber)
}

// checkNumber refuses a node number without a subnet in the pool.
func (c Config) checkNumber(number int) error {
	last := min(1<<(subnetBits-c.Pool.Bits())-1, maxNodeNumber)
	if number < 1 || number > last {
		return fmt.Errorf("node number %d is %w: pool %s has subnets for nodes 1 to %d", number, ErrInvalid,
			c.Pool, last)
	}
	return nil
}

// subnet returns a node's part of the pool.
func (c Config) subnet(number int) netip.Prefix {
	return netip.PrefixFrom(c.offset(uint32(number)<<(32-subnetBits)), subnetBits)
}

// nodeAddress is the node's own address in its subnet: the source of its packets to containers.
func (c Config) nodeAddress(number int) netip.Addr {
	return c.offset(uint32(number)<<(32-subnetBits) + 1)
}

// overlayAddress is the address of a node's end of the encrypted overlay. No container has it: see home.
func (c Config) overlayAddress(number int) netip.Addr {
	const last = 255
	return c.offset(uint32(number)<<(32-subnetBits) + last)
}

// offset returns the address this far from the beginning of the pool.
func (c Config) offset(by uint32) netip.Addr {
	base := c.Pool.Addr().As4()
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], binary.BigEndian.Uint32(base[:])+by)
	return netip.AddrFrom4(out)
}

// home returns the number of the node that owns a container address; it refuses an address that no
// container can have.
func (c Config) home(ip netip.Addr) (int, error) {
	if !ip.Is4() || !c.Pool.Contains(ip) {
		return 0, fmt.Errorf("address %s is %w: it is not in the pool %s", ip, ErrInvalid, c.Pool)
	}
	bytes := ip.As4()
	base := c.Pool.Addr().As4()
	number := int((binary.BigEndian.Uint32(bytes[:]) - binary.BigEndian.Uint32(base[:])) >> (32 - subnetBits))
	if err := c.checkNumber(number); err != nil {
		return 0, fmt.Errorf("address %s: %w", ip, err)
	}
	if last := bytes[3]; last < 2 || last == 255 {
		return 0, fmt.Errorf("address %s is %w: it is kept for the node", ip, ErrInvalid)
	}
	return number, nil
}

// check refuses an address that no container here can have.
func (c Config) check(address Address) (net.HardwareAddr, error) {
	if _, err := c.home(address.IP); err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(address.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return nil, fmt.Errorf("hardware address %q of %s is %w: it must be a unicast Ethernet address",
			address.MAC, address.IP, ErrInvalid)
	}
	if address.MTU < minMTU || address.MTU > maxMTU {
		return nil, fmt.Errorf("MTU %d of %s is %w: it must be from %d to %d", address.MTU, address.IP,
			ErrInvalid, minMTU, maxMTU)
	}
	return mac, nil
}

// containerMAC is derived from the address, so that it is unique and needs no record. The first octet
// marks it as locally administered.
func containerMAC(ip netip.Addr) net.HardwareAddr {
	bytes := ip.As4()
	return append(net.HardwareAddr{0x0e, 0x67}, bytes[:]...)
}

// tunnelMAC is the hardware address of a node's end of the tunnel, which every node knows without asking.
func tunnelMAC(number int) net.HardwareAddr {
	return net.HardwareAddr{0x0e, 0x67, 0x76, 0x78, byte(number >> 8), byte(number)}
}

// tunnelNumber is the inverse of tunnelMAC.
func tunnelNumber(mac net.HardwareAddr) (int, bool) {
	if len(mac) != 6 || mac[0] != 0x0e || mac[1] != 0x67 || mac[2] != 0x76 || mac[3] != 0x78 {
		return 0, false
	}
	return int(binary.BigEndian.Uint16(mac[4:])), true
}

// ipNet converts to the type that the netlink library takes.
func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// hostNet returns the prefix of a single address.
func hostNet(ip netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(ip, ip.BitLen())) }
