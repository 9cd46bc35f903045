package hold

import (
	"bytes"
	"net/netip"
	"testing"
)

// tcpPacket returns an IPv4 packet with a TCP header; words is the length of the IPv4 header.
func tcpPacket(words, flags byte) []byte {
	packet := make([]byte, int(words)*4+20)
	packet[0], packet[9] = 0x40|words, 6
	packet[int(words)*4+13] = flags
	return packet
}

func TestOpensTCP(t *testing.T) {
	const syn, ack, rst = 0x02, 0x10, 0x04
	fragment := tcpPacket(5, syn)
	fragment[7] = 1
	dontFragment := tcpPacket(5, syn)
	dontFragment[6] = 0x40
	udp := tcpPacket(5, syn)
	udp[9] = 17
	for _, one := range []struct {
		packet []byte
		opens  bool
	}{
		// with ECN
		{tcpPacket(5, syn), true}, {tcpPacket(15, syn), true}, {dontFragment, true},
		{tcpPacket(5, syn|0xc0), true},
		{tcpPacket(5, syn|ack), false}, {tcpPacket(5, ack), false}, {tcpPacket(5, rst), false},
		{fragment, false}, {udp, false},
		{tcpPacket(5, syn)[:33], false}, {bytes.Repeat([]byte{0x4f}, 20), false},
	} {
		if opensTCP(one.packet) != one.opens {
			t.Errorf("%x: want %t", one.packet, one.opens)
		}
	}
}

func FuzzOpensTCP(f *testing.F) {
	f.Add(tcpPacket(5, 2))
	ip := netip.AddrFrom4([4]byte{})
	f.Fuzz(func(_ *testing.T, packet []byte) {
		if isPacketFor(packet, ip) {
			opensTCP(packet) // it must not panic
		}
	})
}
