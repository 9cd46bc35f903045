package pool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
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
	ErrInUse        = errors.New("is in use on this machine") // a network, by another program
)

// Limits of addresses, numbers and packets.
const (
	SubnetBits    = 24    // each node owns one /24 of the pool
	MaxNodeNumber = 0xfff // 12 bits of a packet mark
	MinMTU        = 576   // RFC 791: every host must accept this much
	MaxMTU        = 65535 // of IPv4
)

// ValidID accepts container IDs that are usable as file names and in an interface's alias.
var ValidID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)

// Pool is the pool of containers' addresses, as one of its nodes sees it.
type Pool struct {
	Prefix netip.Prefix
	Number int // this node's
}

// Address is the address that a container keeps for life.
type Address struct {
	IP  netip.Addr `json:"ip"`
	MAC string     `json:"mac"`
	MTU int        `json:"mtu"`
}

// Own returns this node's part of the pool.
func (p Pool) Own() netip.Prefix { return p.Subnet(p.Number) }

// CheckNumber refuses a node number without a subnet in the pool.
func (p Pool) CheckNumber(number int) error {
	last := min(1<<(SubnetBits-p.Prefix.Bits())-1, MaxNodeNumber)
	if number < 1 || number > last {
		return fmt.Errorf("node number %d is %w: pool %s has subnets for nodes 1 to %d", number, ErrInvalid,
			p.Prefix, last)
	}
	return nil
}

// Subnet returns a node's part of the pool.
func (p Pool) Subnet(number int) netip.Prefix {
	return netip.PrefixFrom(p.offset(uint32(number)<<(32-SubnetBits)), SubnetBits)
}

// NodeAddress is the node's own address in its subnet: the source of its packets to containers.
func (p Pool) NodeAddress(number int) netip.Addr {
	return p.offset(uint32(number)<<(32-SubnetBits) + 1)
}

// OverlayAddress is the address of a node's end of the encrypted overlay. No container has it: see home.
func (p Pool) OverlayAddress(number int) netip.Addr {
	const last = 255
	return p.offset(uint32(number)<<(32-SubnetBits) + last)
}

// offset returns the address this far from the beginning of the pool.
func (p Pool) offset(by uint32) netip.Addr {
	base := p.Prefix.Addr().As4()
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], binary.BigEndian.Uint32(base[:])+by)
	return netip.AddrFrom4(out)
}

// Home returns the number of the node that owns a container address; it refuses an address that no
// container can have.
func (p Pool) Home(ip netip.Addr) (int, error) {
	if !ip.Is4() || !p.Prefix.Contains(ip) {
		return 0, fmt.Errorf("address %s is %w: it is not in the pool %s", ip, ErrInvalid, p.Prefix)
	}
	bytes := ip.As4()
	base := p.Prefix.Addr().As4()
	number := int((binary.BigEndian.Uint32(bytes[:]) - binary.BigEndian.Uint32(base[:])) >> (32 - SubnetBits))
	if err := p.CheckNumber(number); err != nil {
		return 0, fmt.Errorf("address %s: %w", ip, err)
	}
	if last := bytes[3]; last < 2 || last == 255 {
		return 0, fmt.Errorf("address %s is %w: it is kept for the node", ip, ErrInvalid)
	}
	return number, nil
}

// Check refuses an address that no container here can have.
func (p Pool) Check(address Address) (net.HardwareAddr, error) {
	if _, err := p.Home(address.IP); err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(address.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return nil, fmt.Errorf("hardware address %q of %s is %w: it must be a unicast Ethernet address",
			address.MAC, address.IP, ErrInvalid)
	}
	if address.MTU < MinMTU || address.MTU > MaxMTU {
		return nil, fmt.Errorf("MTU %d of %s is %w: it must be from %d to %d", address.MTU, address.IP,
			ErrInvalid, MinMTU, MaxMTU)
	}
	return mac, nil
}

// ContainerMAC is derived from the address, so that it is unique and needs no record. The first octet
// marks it as locally administered.
func ContainerMAC(ip netip.Addr) net.HardwareAddr {
	bytes := ip.As4()
	return append(net.HardwareAddr{0x0e, 0x67}, bytes[:]...)
}

// TunnelMAC is the hardware address of a node's end of the tunnel, which every node knows without asking.
func TunnelMAC(number int) net.HardwareAddr {
	return net.HardwareAddr{0x0e, 0x67, 0x76, 0x78, byte(number >> 8), byte(number)}
}

// TunnelNumber is the inverse of TunnelMAC.
func TunnelNumber(mac net.HardwareAddr) (int, bool) {
	if len(mac) != 6 || mac[0] != 0x0e || mac[1] != 0x67 || mac[2] != 0x76 || mac[3] != 0x78 {
		return 0, false
	}
	return int(binary.BigEndian.Uint16(mac[4:])), true
}
