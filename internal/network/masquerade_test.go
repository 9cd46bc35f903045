package network

import (
	"encoding/binary"
	"errors"
	"io"
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

// TestMasqueradedOutOfWindow sends packets that conntrack takes for far outside the window, within a
// connection that a container has opened to the outside. They must reach the container; otherwise the node
// would answer them with a reset.
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

// TestMasqueradedLate checks that packets of a masqueraded connection, held by another node, reach the
// container after it has come home, and that nobody answers them with a reset.
func TestMasqueradedLate(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	a, b := s.nodes["a"], s.nodes["b"]
	outside := netip.MustParseAddrPort("198.51.100.2:7000")
	client, server := s.tcp("a/one", "client-a", outside)
	must(t, errors.Join(client.SetDeadline(time.Now().Add(10*time.Second)),
		server.SetDeadline(time.Now().Add(10*time.Second))))
	question, answer := []byte("late"), []byte("here")
	for range 3 {
		hold, err := b.Hold(address.IP)
		must(t, err)
		must(t, a.Route(address.IP, Via("b")))
		for held := range int64(3) {
			_, err := server.Write(question)
			must(t, err)
			eventually(t, "it is held", func() bool { return hold.Stats().HeldPackets > held })
		}
		must(t, a.Route(address.IP, Local("one")))
		must(t, hold.Release(t.Context(), Via("a"), 0))
		_, err = io.ReadFull(client, make([]byte, 3*len(question)))
		must(t, err)
		_, err = client.Write(answer)
		must(t, err)
		_, err = io.ReadFull(server, make([]byte, len(answer)))
		must(t, err)
	}
	for _, where := range []string{"a", "a/one", "client-a"} {
		for _, name := range []string{"OutRsts", "InCsumErrors"} {
			if count := s.counter(where, "Tcp", name); count != 0 {
				t.Errorf("%s of %s is %d", name, where, count)
			}
		}
	}
}

// TestMasqueradedLateDatagrams does the same with datagrams, with a checksum and without one; a missing
// checksum stays missing.
func TestMasqueradedLateDatagrams(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	a, b := s.nodes["a"], s.nodes["b"]
	outside := netip.MustParseAddrPort("198.51.100.2:7000")
	server := s.listen("client-a", outside)
	for without := range 2 {
		raw, err := server.SyscallConn()
		must(t, err)
		var told error
		must(t, raw.Control(func(fd uintptr) {
			told = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET,
				unix.SO_NO_CHECK, without)
		}))
		must(t, told)
		var client net.Conn
		s.in("a/one", func() (err error) {
			client, err = net.Dial("udp4", outside.String())
			return err
		})
		defer client.Close()
		must(t, errors.Join(client.SetDeadline(time.Now().Add(10*time.Second)),
			server.SetDeadline(time.Now().Add(10*time.Second))))
		_, err = client.Write([]byte("question"))
		must(t, err)
		_, from, err := server.ReadFrom(make([]byte, 16))
		must(t, err)
		hold, err := b.Hold(address.IP)
		must(t, err)
		must(t, a.Route(address.IP, Via("b")))
		for held := range int64(3) {
			_, err := server.WriteTo([]byte("answer"), from)
			must(t, err)
			eventually(t, "it is held", func() bool { return hold.Stats().HeldPackets > held })
		}
		must(t, a.Route(address.IP, Local("one")))
		must(t, hold.Release(t.Context(), Via("a"), 0))
		for range 3 {
			if _, err = client.Read(make([]byte, 16)); err != nil {
				t.Fatalf("SO_NO_CHECK %d: %v", without, err)
			}
		}
	}
}
