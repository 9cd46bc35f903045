package kernel

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSyncSegmentSize makes a connection in repair mode, as CRIU does: its segments are small until their
// size is computed again.
func TestSyncSegmentSize(t *testing.T) {
	inOwnNamespace(t)
	const announced = 65495
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} { // with IPv6, a mapped address
		socket := repaired(t, family, announced)
		if got := segmentSize(t, socket); got > 536 {
			t.Errorf("family %d: segments of %d bytes after a restore; is there nothing to mend?", family,
				got)
		}
		if err := SyncSegmentSize(socket); err != nil {
			t.Fatal(err)
		}
		if got := segmentSize(t, socket); got < announced-40 {
			t.Errorf("family %d: segments of %d bytes, want nearly %d", family, got, announced)
		}
	}
}

func segmentSize(t *testing.T, socket int) int {
	t.Helper()
	size, err := unix.GetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// repaired returns a connection, established without a peer, with this size announced by the peer.
func repaired(t *testing.T, family, announced int) int {
	t.Helper()
	socket, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(socket) })
	loopback := netip.MustParseAddr("127.0.0.1")
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: 7, Addr: loopback.As4()}
	if family == unix.AF_INET6 {
		to = &unix.SockaddrInet6{Port: 7, Addr: loopback.As16()} // ::ffff:127.0.0.1
	}
	const optionMaxseg = 2 // TCPOPT_MAXSEG of include/net/tcp.h
	option := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, optionMaxseg),
		uint32(announced))
	err = errors.Join(unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1),
		unix.Connect(socket, to),
		unix.SetsockoptString(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR_OPTIONS, string(option)),
		unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR, -1))
	if err != nil {
		t.Fatal(err)
	}
	return socket
}
