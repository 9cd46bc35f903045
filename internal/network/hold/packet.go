package hold

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// maxPacket is the maximum length of an IPv4 packet.
const maxPacket = 65535

// isPacketFor reports whether a packet is an IPv4 packet to the address: a hold may forward nothing else.
func isPacketFor(packet []byte, ip netip.Addr) bool {
	const header, destination = 20, 16
	return len(packet) >= header && packet[0]>>4 == 4 &&
		ip == netip.AddrFrom4([4]byte(packet[destination:header]))
}

// opensTCP reports whether this IPv4 packet is a TCP SYN without ACK.
func opensTCP(packet []byte) bool {
	const header, protocol, fragment = 20, 9, 6
	const flags, syn, ack = 13, 0x02, 0x10
	length := int(packet[0]&0xf) * 4
	return length >= header && packet[protocol] == unix.IPPROTO_TCP &&
		(int(packet[fragment])<<8|int(packet[fragment+1]))&0x1fff == 0 && // the first or only fragment
		len(packet) > length+flags && packet[length+flags]&(syn|ack) == syn
}

// firstClientPort is the first port that the kernel assigns to clients (ip_local_port_range,
// ip-sysctl.rst).
const firstClientPort = 32768

// isRequest reports whether this IPv4 packet is a datagram to a service's port. An answer goes to a port
// that the kernel chose.
func isRequest(packet []byte) bool {
	const header, protocol, fragment, port = 20, 9, 6, 2
	length := int(packet[0]&0xf) * 4
	return length >= header && packet[protocol] == unix.IPPROTO_UDP &&
		(int(packet[fragment])<<8|int(packet[fragment+1]))&0x1fff == 0 &&
		len(packet) > length+port+1 && int(packet[length+port])<<8|
		int(packet[length+port+1]) < firstClientPort
}
