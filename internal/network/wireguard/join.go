package wireguard

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Offsets of fields in an IPv4 datagram without options (RFC 791, RFC 768), and of VXLAN within it (RFC
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
	// Joined datagrams are equal up to sameEnd. The packet filter sees the headers of the first datagram,
	// and checks by its VXLAN and Ethernet headers whether the peer sends as itself.
	sameEnd = udpEnd + 8 + 14
)

// joiner finds datagrams that can be joined. The kernel splits them again just before VXLAN reads them.
type joiner struct {
	most int // datagrams at once; 1 if the kernel accepts no joined datagrams
}

// count returns how many of the first packets can be written as one.
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
		if len(next) < len(first) { // only the last datagram may be shorter
			break
		}
	}
	return count
}

// isDatagram reports whether a packet is a whole datagram without IPv4 options and padding, long enough for
// VXLAN and Ethernet.
func isDatagram(packet []byte) bool {
	const moreOrLater = 0x3fff // flag and offset of fragments
	return len(packet) >= sameEnd && packet[0] == 0x45 && packet[9] == unix.IPPROTO_UDP &&
		int(binary.BigEndian.Uint16(packet[ipLength:])) == len(packet) &&
		binary.BigEndian.Uint16(packet[ipFragment:])&moreOrLater == 0 &&
		int(binary.BigEndian.Uint16(packet[udpLength:])) == len(packet)-ipEnd
}

// sameHeaders compares datagrams, except for their lengths, identifications, and checksums.
func sameHeaders(a, b []byte) bool {
	same := func(from, to int) bool { return bytes.Equal(a[from:to], b[from:to]) }
	return same(0, ipLength) && same(ipFragment, ipChecksum) &&
		same(ipSource, udpLength) && same(udpEnd, sameEnd)
}

// joinHeaders changes the headers of the first datagram, and the header before it, to describe all of the
// joined datagrams. The UDP checksum covers only the pseudo-header, as in a datagram whose checksum is still
// to be computed: WireGuard has authenticated the contents.
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
	binary.NativeEndian.PutUint16(header[6:], ipEnd)             // start of the checksum's range
	binary.NativeEndian.PutUint16(header[8:], udpChecksum-ipEnd) // offset of the checksum from there
	binary.BigEndian.PutUint16(first[ipLength:], uint16(udpEnd+length))
	binary.BigEndian.PutUint16(first[udpLength:], uint16(udpEnd-ipEnd+length))
	binary.BigEndian.PutUint16(first[ipChecksum:], 0)
	binary.BigEndian.PutUint16(first[ipChecksum:], ^sumOf(first[:ipEnd], 0))
	pseudo := unix.IPPROTO_UDP + uint32(udpEnd-ipEnd+length)
	binary.BigEndian.PutUint16(first[udpChecksum:], sumOf(first[ipSource:ipEnd], pseudo))
}

// sumOf adds an even number of bytes to a one's complement sum (RFC 1071).
func sumOf(data []byte, sum uint32) uint16 {
	for at := 0; at < len(data); at += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[at:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
