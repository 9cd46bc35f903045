package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sum is the checksum of TCP (RFC 9293, section 3.1) for a segment between two addresses.
func sum(from, to netip.Addr, segment []byte) uint16 {
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, unix.IPPROTO_TCP, 0, byte(len(segment)))
	var total uint32
	for _, part := range [][]byte{pseudo, segment} {
		for i := 0; i+1 < len(part); i += 2 {
			total += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

// TestMasqueradedOutOfWindow sends, within a connection that a container has opened to the outside, what conntrack takes for
// far beyond the window. It has to reach the container: otherwise the node itself would answer it, by a reset.
func TestMasqueradedOutOfWindow(t *testing.T) {
	s := newSite(t)
	s.container("a", "one")
	outside := netip.MustParseAddrPort("198.51.100.2:7000")
	client, server := s.tcp("a/one", "client-a", outside)
	from, to := outside, server.RemoteAddr().(*net.TCPAddr).AddrPort()
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment, from.Port())
	binary.BigEndian.PutUint16(segment[2:], to.Port())
	binary.BigEndian.PutUint32(segment[4:], 0x12345678)
	binary.BigEndian.PutUint32(segment[8:], 0x12345678)
	segment[12], segment[13] = 5<<4, 0x10 // ACK
	binary.BigEndian.PutUint16(segment[16:], sum(from.Addr(), to.Addr(), segment))
	received := s.counter("a/one", "Tcp", "InSegs")
	s.in("client-a", func() error {
		raw, err := net.Dial("ip4:tcp", to.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = raw.Close() }()
		_, err = raw.Write(segment)
		return err
	})
	eventually(t, "an answer", func() bool {
		return s.counter("a", "Tcp", "OutRsts") > 0 || s.counter("a/one", "Tcp", "InSegs") > received
	})
	if resets := s.counter("a", "Tcp", "OutRsts"); resets != 0 {
		t.Errorf("the node has sent %d resets", resets)
	}
	if _, err := client.Write([]byte("still here")); err != nil {
		t.Error(err)
	}
	must(t, server.SetReadDeadline(time.Now().Add(5*time.Second)))
	if _, err := server.Read(make([]byte, 16)); err != nil {
		t.Error(err)
	}
}
