package wireguard

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Where fields of a datagram in IPv4 without options are (RFC 791, RFC 768), and of VXLAN within it (RFC
// 7348).
const (
	ipLength    = 2
	ipFragment  = 6
	ipChecksum  = 10
	ipSource    = 12
	ipEnd       = 20
	udpLength   = 24
	udpChecksum = 26
	udpEnd      = 28
	// sameEnd is up to where joined datagrams are equal: the packet filter sees the first one's headers,
	// and decides by those of VXLAN and Ethernet whether the peer sends as itself.
	sameEnd = udpEnd + 8 + 14
)

// joiner finds datagrams that can be joined. The kernel splits them up again just before VXLAN reads them.
type joiner struct {
	most int // how many at once; 1 if the kernel takes none that are joined
}

// count is how many of the first packets can be written as one.
func (j joiner) count(packets [][]byte, offset int) int {
	first := packets[0][offset:]
	if !isDatagram(first) {
		return 1
	}
	count, total := 1, len(first)
	for count < min(j.most, len(packets)) {
		next := packets[count][offset:]
		total += len(next) - udpEnd
		if !isDatagram(next) || len(next) > len(first) || total > 0xffff || !sameHeaders(first, next) {
			break
		}
		count++
		if len(next) < len(first) { // only the last one may be shorter
			break
		}
	}
	return count
}

// isDatagram tells that a packet is a whole datagram without IPv4 options and padding, long enough for
// VXLAN and Ethernet.
func isDatagram(packet []byte) bool {
	const moreOrLater = 0x3fff // flag and offset of fragments
	return len(packet) >= sameEnd && packet[0] == 0x45 && packet[9] == unix.IPPROTO_UDP &&
		int(binary.BigEndian.Uint16(packet[ipLength:])) == len(packet) &&
		binary.BigEndian.Uint16(packet[ipFragment:])&moreOrLater == 0 &&
		int(binary.BigEndian.Uint16(packet[udpLength:])) == len(packet)-ipEnd
}

// sameHeaders compares datagrams, but for their lengths, identifications, and checksums.
func sameHeaders(a, b []byte) bool {
	same := func(from, to int) bool { return bytes.Equal(a[from:to], b[from:to]) }
	return same(0, ipLength) && same(ipFragment, ipChecksum) &&
		same(ipSource, udpLength) && same(udpEnd, sameEnd)
}

// joinHeaders makes the headers of the first datagram, and what is before it, those of all of them. The UDP
// checksum is that of the pseudo-header, as of a datagram whose checksum is still to be made: WireGuard has
// proved what they carry.
func joinHeaders(packets [][]byte, offset int) {
	first := packets[0][offset:]
	length := 0
	for _, packet := range packets {
		length += len(packet) - offset - udpEnd
	}
	header := packets[0][offset-headerSize : offset]
	header[0], header[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_UDP_L4
	binary.NativeEndian.PutUint16(header[2:], udpEnd)
	binary.NativeEndian.PutUint16(header[4:], uint16(len(first)-udpEnd))
	binary.NativeEndian.PutUint16(header[6:], ipEnd)             // where the checksum begins
	binary.NativeEndian.PutUint16(header[8:], udpChecksum-ipEnd) // where it is, from there
	binary.BigEndian.PutUint16(first[ipLength:], uint16(udpEnd+length))
	binary.BigEndian.PutUint16(first[udpLength:], uint16(udpEnd-ipEnd+length))
	binary.BigEndian.PutUint16(first[ipChecksum:], 0)
	binary.BigEndian.PutUint16(first[ipChecksum:], ^sumOf(first[:ipEnd], 0))
	pseudo := unix.IPPROTO_UDP + uint32(udpEnd-ipEnd+length)
	binary.BigEndian.PutUint16(first[udpChecksum:], sumOf(first[ipSource:ipEnd], pseudo))
}

// sumOf adds an even number of bytes to a sum in one's complement (RFC 1071).
func sumOf(data []byte, sum uint32) uint16 {
	for at := 0; at < len(data); at += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[at:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
