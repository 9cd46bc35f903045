package nft

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/pool"
)

// Offsets of fields (RFC 791, RFC 8200, RFC 9293) and values.
const (
	OffsetSource       = 12
	OffsetDestination  = 16
	OffsetSource6      = 8
	OffsetDestination6 = 24
	offsetTCPFlags     = 13
	OffsetPort         = 2 // destination port of UDP
	FIN                = 0x01
	SYN                = 0x02
	RST                = 0x04
	ACK                = 0x10
	ICMPRedirect       = 5
)

// Rule is a list of expressions. The kernel stops evaluating the rule for a packet that fails one of them.
type Rule []expr.Any

// Exprs returns a rule with these expressions.
func Exprs(expressions ...expr.Any) Rule { return expressions }

// Join concatenates rules.
func Join(parts ...Rule) Rule {
	var whole Rule
	for _, part := range parts {
		whole = append(whole, part...)
	}
	return whole
}

// Adder returns a function that appends a rule to a chain.
func Adder(conn *nftables.Conn, table *nftables.Table, chain *nftables.Chain) func(parts ...Rule) {
	return func(parts ...Rule) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain,
			Exprs: Join(parts...)})
	}
}

// Drop drops the packet.
func Drop() Rule { return Exprs(&expr.Verdict{Kind: expr.VerdictDrop}) }

// Group compares the interface group.
func Group(key expr.MetaKey, number uint32) Rule {
	return Exprs(&expr.Meta{Key: key, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
			Data: binaryutil.NativeEndian.PutUint32(number)})
}

// FromGroup matches packets that came in through a device of this group.
func FromGroup(number uint32) Rule { return Group(expr.MetaKeyIIFGROUP, number) }

// NotGroups matches packets whose device is not ours.
func NotGroups(key expr.MetaKey) Rule {
	parts := Exprs(&expr.Meta{Key: key, Register: unix.NFT_REG_1})
	for _, number := range []uint32{pool.GroupContainer, pool.GroupTunnel, pool.GroupHold,
		pool.GroupOverlay} {
		parts = append(parts, &expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1,
			Data: binaryutil.NativeEndian.PutUint32(number)})
	}
	return parts
}

// InPrefix matches packets in which the address at this offset is within the prefix, or is not.
func InPrefix(offset uint32, prefix netip.Prefix, within bool) Rule {
	op := expr.CmpOpEq
	if !within {
		op = expr.CmpOpNeq
	}
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: offset,
		Len:    4}, &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
		Mask: net.CIDRMask(prefix.Bits(), 32), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: prefix.Addr().AsSlice()})
}

// FromEthernet matches packets with this Ethernet source.
func FromEthernet(mac net.HardwareAddr) Rule {
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseLLHeader, Offset: 6,
		Len: 6},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: mac})
}

// Protocol compares the transport protocol.
func Protocol(number byte, op expr.CmpOp) Rule {
	return Exprs(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: []byte{number}})
}

// ToPort compares the destination port.
func ToPort(port int) Rule {
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: OffsetPort, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
			Data: binary.BigEndian.AppendUint16(nil, uint16(port))})
}

// ICMPType compares the type of an ICMP message.
func ICMPType(number byte) Rule {
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader, Offset: 0,
		Len: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{number}})
}

// Accept ends the chain for the packet.
func Accept() Rule { return Exprs(&expr.Verdict{Kind: expr.VerdictAccept}) }

// OpensConnection matches TCP segments with SYN and without ACK.
func OpensConnection() Rule {
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: offsetTCPFlags, Len: 1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 1,
			Mask: []byte{SYN | ACK}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{SYN}})
}

// SetIngressMark stores an ingress mark in the connection's mark and leaves the other bits alone.
func SetIngressMark(number int) Rule {
	return Exprs(&expr.Ct{Key: expr.CtKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: Native(^uint32(pool.IngressMask)), Xor: Native(uint32(number) << pool.IngressShift)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: unix.NFT_REG_1, SourceRegister: true})
}

// HasIngressMark matches packets whose connection has an ingress mark, and leaves the mark in register 1.
func HasIngressMark() Rule {
	return Exprs(&expr.Ct{Key: expr.CtKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: Native(pool.IngressMask), Xor: Native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: Native(0)})
}

// UseIngressMark marks the packet with its connection's ingress mark, if it has one.
func UseIngressMark() Rule {
	return Join(HasIngressMark(),
		Exprs(&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1}))
}

// MarkWith marks the packet with an ingress mark.
func MarkWith(number int) Rule {
	return Exprs(&expr.Immediate{Register: unix.NFT_REG_1, Data: Native(uint32(number) << pool.IngressShift)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
}

// NotMarkedWith matches packets without the ingress mark of this node.
func NotMarkedWith(number int) Rule {
	return Exprs(&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: Native(pool.IngressMask), Xor: Native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1,
			Data: Native(uint32(number) << pool.IngressShift)})
}

// ClearMark clears the packet's mark.
func ClearMark() Rule {
	return Exprs(&expr.Immediate{Register: unix.NFT_REG_1, Data: Native(0)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
}

// OriginalSourcePort gives packets in the direction of their connection's first packet the source port of
// that packet. checksum is the offset of the transport protocol's checksum, or NoChecksum.
func OriginalSourcePort(checksum uint32) Rule {
	const original = 0 // IP_CT_DIR_ORIGINAL
	return Exprs(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{original}},
		&expr.Ct{Key: expr.CtKeyPROTOSRC, Register: unix.NFT_REG_1, Direction: original},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1,
			Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2,
			CsumType: ChecksumType(checksum), CsumOffset: checksum})
}

// Offsets of the checksums of TCP and UDP. A datagram need not have one.
const (
	ChecksumTCP = 16
	ChecksumUDP = 6
	NoChecksum  = 0
)

// HasChecksum matches datagrams that have a checksum, or have none. When the kernel updates a missing
// checksum, it makes a wrong one (nft_csum_replace).
func HasChecksum(has bool) Rule {
	op := expr.CmpOpEq
	if has {
		op = expr.CmpOpNeq
	}
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: ChecksumUDP, Len: 2}, &expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: []byte{0, 0}})
}

// ChecksumType says how to update a checksum at an offset in the transport header.
func ChecksumType(offset uint32) expr.PayloadCsumType {
	if offset == NoChecksum {
		return expr.CsumTypeNone
	}
	return expr.CsumTypeInet
}

// Native returns a number in the byte order of the kernel's registers.
func Native(number uint32) []byte { return binaryutil.NativeEndian.PutUint32(number) }

// AddressIn matches packets in which the address at this offset belongs to a container on a bridge.
func AddressIn(offset uint32, set *nftables.Set) Rule {
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: offset,
		Len:    4}, &expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID})
}

// IsAddress matches packets with this address at this offset.
func IsAddress(offset uint32, ip netip.Addr) Rule {
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: offset,
		Len:    4}, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: ip.AsSlice()})
}

// OpensNone matches TCP segments that do not open a connection.
func OpensNone() Rule {
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: offsetTCPFlags, Len: 1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 1,
			Mask: []byte{SYN | ACK}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: []byte{SYN}})
}

// InState matches packets in one of these states of connection tracking.
func InState(bits uint32) Rule {
	return Exprs(&expr.Ct{Key: expr.CtKeySTATE, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: Native(bits), Xor: Native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: Native(0)})
}

// Translated matches packets of connections whose destination was translated (IPS_DST_NAT,
// nf_conntrack_common.h).
func Translated() Rule {
	const destination = 1 << 5
	return Exprs(&expr.Ct{Key: expr.CtKeySTATUS, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: Native(destination), Xor: Native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: Native(0)})
}

// AddressType returns the type of the addresses of a table's family.
func AddressType(table *nftables.Table) nftables.SetDatatype {
	if table.Family == nftables.TableFamilyIPv6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// FieldOf loads an address, whose offset differs between IPv4 and IPv6.
func FieldOf(table *nftables.Table, offset, offset6 uint32) Rule {
	size := uint32(4)
	if table.Family == nftables.TableFamilyIPv6 {
		offset, size = offset6, 16
	}
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
		Offset: offset,
		Len:    size})
}

// IsIn matches packets whose loaded value is in a set.
func IsIn(set *nftables.Set) Rule {
	return Exprs(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID})
}

// NotIn matches packets whose loaded value is not in a set.
func NotIn(set *nftables.Set) Rule {
	return Exprs(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID, Invert: true})
}

// NotFromDevice matches packets that came in through another device.
func NotFromDevice(name string) Rule {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return Exprs(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: padded})
}

// Keys of the kind of an interface, as in "ip -details link" (enum nft_meta_keys,
// linux/netfilter/nf_tables.h; 4.18).
const (
	MetaKeyIIFKIND expr.MetaKey = 26
	MetaKeyOIFKIND expr.MetaKey = 27
)

// OfKind matches packets whose interface is of this kind. A physical interface has no kind, so no such rule
// matches it.
func OfKind(key expr.MetaKey, kind string) Rule {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, kind)
	return Exprs(&expr.Meta{Key: key, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: padded})
}

// HasFlag matches TCP segments with one of these flags.
func HasFlag(flags byte) Rule {
	return Exprs(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: offsetTCPFlags, Len: 1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 1,
			Mask: []byte{flags}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: []byte{0}})
}
