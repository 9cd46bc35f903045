package network

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Offsets of fields (RFC 791, RFC 8200, RFC 9293) and values.
const (
	offsetSource       = 12
	offsetDestination  = 16
	offsetSource6      = 8
	offsetDestination6 = 24
	offsetTCPFlags     = 13
	offsetPort         = 2 // destination port of UDP
	tcpFIN             = 0x01
	tcpSYN             = 0x02
	tcpRST             = 0x04
	tcpACK             = 0x10
	icmpRedirect       = 5
)

// rule is a list of expressions. The kernel stops evaluating the rule for a packet that fails one of them.
type rule []expr.Any

// is returns a rule with these expressions.
func is(expressions ...expr.Any) rule { return expressions }

// join concatenates rules.
func join(parts ...rule) rule {
	var whole rule
	for _, part := range parts {
		whole = append(whole, part...)
	}
	return whole
}

// ruleAdder returns a function that appends a rule to a chain.
func ruleAdder(conn *nftables.Conn, table *nftables.Table, chain *nftables.Chain) func(parts ...rule) {
	return func(parts ...rule) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain,
			Exprs: join(parts...)})
	}
}

// drop drops the packet.
func drop() rule { return is(&expr.Verdict{Kind: expr.VerdictDrop}) }

// group compares the interface group.
func group(key expr.MetaKey, number uint32) rule {
	return is(&expr.Meta{Key: key, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
			Data: binaryutil.NativeEndian.PutUint32(number)})
}

// fromGroup matches packets that came in through a device of this group.
func fromGroup(number uint32) rule { return group(expr.MetaKeyIIFGROUP, number) }

// notGroups matches packets whose device is not ours.
func notGroups(key expr.MetaKey) rule {
	parts := is(&expr.Meta{Key: key, Register: unix.NFT_REG_1})
	for _, number := range []uint32{groupContainer, groupTunnel, groupHold, groupOverlay} {
		parts = append(parts, &expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1,
			Data: binaryutil.NativeEndian.PutUint32(number)})
	}
	return parts
}

// inPool matches packets in which the address at this offset is within the prefix, or is not.
func inPool(offset uint32, prefix netip.Prefix, within bool) rule {
	op := expr.CmpOpEq
	if !within {
		op = expr.CmpOpNeq
	}
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: 4}, &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
		Mask: net.CIDRMask(prefix.Bits(), 32), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: prefix.Addr().AsSlice()})
}

// fromEthernet matches packets with this Ethernet source.
func fromEthernet(mac net.HardwareAddr) rule {
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: mac})
}

// protocol compares the transport protocol.
func protocol(number byte, op expr.CmpOp) rule {
	return is(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: []byte{number}})
}

// toPort compares the destination port.
func toPort(port int) rule {
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: offsetPort, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
			Data: binary.BigEndian.AppendUint16(nil, uint16(port))})
}

// icmpType compares the type of an ICMP message.
func icmpType(number byte) rule {
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader, Offset: 0,
		Len: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{number}})
}

// accept ends the chain for the packet.
func accept() rule { return is(&expr.Verdict{Kind: expr.VerdictAccept}) }

// opensConnection matches TCP segments with SYN and without ACK.
func opensConnection() rule {
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: offsetTCPFlags, Len: 1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 1,
			Mask: []byte{tcpSYN | tcpACK}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{tcpSYN}})
}

// setIngressMark stores an ingress mark in the connection's mark and leaves the other bits alone.
func setIngressMark(number int) rule {
	return is(&expr.Ct{Key: expr.CtKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: native(^uint32(ingressMask)), Xor: native(uint32(number) << ingressShift)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: unix.NFT_REG_1, SourceRegister: true})
}

// hasIngressMark matches packets whose connection has an ingress mark, and leaves the mark in register 1.
func hasIngressMark() rule {
	return is(&expr.Ct{Key: expr.CtKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: native(ingressMask), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: native(0)})
}

// useIngressMark marks the packet with its connection's ingress mark, if it has one.
func useIngressMark() rule {
	return join(hasIngressMark(),
		is(&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1}))
}

// markWith marks the packet with an ingress mark.
func markWith(number int) rule {
	return is(&expr.Immediate{Register: unix.NFT_REG_1, Data: native(uint32(number) << ingressShift)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
}

// notMarkedWith matches packets without the ingress mark of this node.
func notMarkedWith(number int) rule {
	return is(&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4,
			Mask: native(ingressMask), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: native(uint32(number) << ingressShift)})
}

// clearMark clears the packet's mark.
func clearMark() rule {
	return is(&expr.Immediate{Register: unix.NFT_REG_1, Data: native(0)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
}

// originalSourcePort gives packets in the direction of their connection's first packet the source port of
// that packet. checksum is the offset of the transport protocol's checksum, or noChecksum.
func originalSourcePort(checksum uint32) rule {
	const original = 0 // IP_CT_DIR_ORIGINAL
	return is(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{original}},
		&expr.Ct{Key: expr.CtKeyPROTOSRC, Register: unix.NFT_REG_1, Direction: original},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1,
			Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2,
			CsumType: checksumType(checksum), CsumOffset: checksum})
}

// Offsets of the checksums of TCP and UDP. A datagram need not have one.
const (
	checksumTCP = 16
	checksumUDP = 6
	noChecksum  = 0
)

// hasChecksum matches datagrams that have a checksum, or have none. When the kernel updates a missing
// checksum, it makes a wrong one (nft_csum_replace).
func hasChecksum(has bool) rule {
	op := expr.CmpOpEq
	if has {
		op = expr.CmpOpNeq
	}
	return is(&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
		Offset: checksumUDP, Len: 2}, &expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: []byte{0, 0}})
}

// checksumType says how to update a checksum at an offset in the transport header.
func checksumType(offset uint32) expr.PayloadCsumType {
	if offset == noChecksum {
		return expr.CsumTypeNone
	}
	return expr.CsumTypeInet
}

// native returns a number in the byte order of the kernel's registers.
func native(number uint32) []byte { return binaryutil.NativeEndian.PutUint32(number) }
