package lab

import (
	"encoding/binary"
	"errors"
)

// The header that the kernel puts before each packet of a TUN with IFF_VNET_HDR: struct
// virtio_net_hdr of linux/virtio_net.h, in host byte order, which is little-endian on every machine
// Godwit runs on (TUNSETVNETLE makes sure of it).
const (
	vnetHeaderSize = 10

	vnetNeedsChecksum = 1
	vnetGSONone       = 0
	vnetGSOTCP4       = 1
	vnetGSOTCP6       = 4
	vnetGSOECN        = 0x80

	ethernetHeader = 14
	maxPacket      = vnetHeaderSize + 65536 + 64
)

// frame is the link's information about a packet: how many packets it would be on a real wire, and how
// long.
type frame struct {
	segments  int
	wireBytes int
}

var errFrame = errors.New("malformed packet from a tun device")

// readFrame parses a packet with its virtio header. A packet that the kernel would have cut into segments
// counts as those segments, each with its headers. readFrame also corrects the header's own length: the
// kernel sets it to the length of the linear part, and uses it as the size of an allocation when it gets
// the packet back.
func readFrame(data []byte) (frame, error) {
	if len(data) < vnetHeaderSize+1 {
		return frame{}, errFrame
	}
	packet := data[vnetHeaderSize:]
	kind := data[1] &^ vnetGSOECN
	if kind == vnetGSONone {
		return frame{segments: 1, wireBytes: len(packet) + ethernetHeader}, nil
	}
	segment := int(binary.LittleEndian.Uint16(data[4:]))
	start := int(binary.LittleEndian.Uint16(data[6:]))
	if (kind != vnetGSOTCP4 && kind != vnetGSOTCP6) || data[0]&vnetNeedsChecksum == 0 ||
		segment == 0 || start+20 > len(packet) {
		return frame{}, errFrame
	}
	headers := start + int(packet[start+12]>>4)*4 // the data offset of the TCP header, RFC 9293 section 3.1
	if headers < start+20 || headers >= len(packet) {
		return frame{}, errFrame
	}
	binary.LittleEndian.PutUint16(data[2:], uint16(headers))
	payload := len(packet) - headers
	count := (payload + segment - 1) / segment
	return frame{segments: count, wireBytes: payload + count*(headers+ethernetHeader)}, nil
}
