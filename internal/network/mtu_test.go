package network

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/pool"
)

// restoredSocket restores a connection as CRIU does, with a peer that takes segments of this size.
func (s *site) restoredSocket(where string, from, to netip.AddrPort, segment uint32) int {
	s.t.Helper()
	fd := -1
	s.in(where, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	s.t.Cleanup(func() { _ = unix.Close(fd) })
	must(s.t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1))
	must(s.t, unix.Bind(fd, &unix.SockaddrInet4{Addr: from.Addr().As4(), Port: int(from.Port())}))
	must(s.t, unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}))
	const maximumSegmentSize = 2 // RFC 9293, section 3.2
	option := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, maximumSegmentSize),
		segment)
	must(s.t, unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_OPTIONS, string(option)))
	return fd
}

func segmentOf(t *testing.T, fd int) uint32 {
	t.Helper()
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	must(t, err)
	return info.Snd_mss
}

// TestRestoredSegments checks that a connection that moved with its container keeps its segment size.
func TestRestoredSegments(t *testing.T) {
	s := newSite(t)
	one := s.container("a", "one")
	two, err := s.nodes["b"].Lease("two")
	must(t, err)
	s.attach("b", "two", two)
	most := uint32(two.MTU - 40)
	fd := s.restoredSocket("b/two", netip.AddrPortFrom(two.IP, 7000), netip.AddrPortFrom(one.IP, 7001), most)
	if got := segmentOf(t, fd); got >= most {
		t.Errorf("this kernel makes segments of %d bytes by itself: nothing has to be done any more", got)
	}
	must(t, s.nodes["b"].Route(two.IP, Local("two")))
	const offNoProbe = -1
	must(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, offNoProbe))
	_, err = unix.Write(fd, []byte("x"))
	must(t, err)
	const timestamps = 12 // bytes of each segment
	if got := segmentOf(t, fd); got != most-timestamps {
		t.Errorf("segments have %d bytes, want %d", got, most-timestamps)
	}
	s.attach("b", "two", two)
	if got := s.mtu("b/two"); got != two.MTU {
		t.Errorf("attached once more it has an MTU of %d, want %d", got, two.MTU)
	}
}

// TestLargePacketsForArrived checks that a container on a bridge sends packets that fit into the tunnel,
// and still receives packets of the size that its peers knew before the move. A lost segment is
// retransmitted with the same size, and would be dropped each time.
func TestLargePacketsForArrived(t *testing.T) {
	s := newSite(t)
	const gateway, own, nobody, whole = "172.30.0.1", "172.30.0.2", "172.30.0.3", 1500
	b, ip := s.nodes["b"], netip.MustParseAddr(own)
	s.guest("b", gateway+"/24", own+"/24")
	must(t, b.AdoptBridged(t.Context(), s.dir+"/guest", Bridged{Container: "one", Address: ip, From: "a"}))
	most := uint32(b.MTU() - 40)
	// nobody answers with a reset
	s.must("guest", "ip", "neighbour", "add", nobody, "lladdr", "02:00:00:00:00:03", "dev", pool.InsideDevice)
	fd := s.restoredSocket("guest", netip.AddrPortFrom(ip, 7000), netip.MustParseAddrPort(nobody+":7001"),
		whole-40)
	if got := segmentOf(t, fd); got >= most {
		t.Errorf("this kernel makes segments of %d bytes by itself: nothing has to be done any more", got)
	}
	openWindow(t, fd)
	must(t, b.Route(ip, Local("one")))
	const offNoProbe = -1
	must(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, offNoProbe))
	for range 2 { // the first write notices that the routes have changed
		_, err := unix.Write(fd, []byte("x"))
		must(t, err)
	}
	const timestamps = 12 // bytes of each segment
	if got := segmentOf(t, fd); got != most-timestamps {
		t.Errorf("segments have %d bytes, want %d", got, most-timestamps)
	}
	if got := s.mtu("guest"); got != whole {
		t.Errorf("its interface takes packets of up to %d bytes, want %d", got, whole)
	}
	s.reaches("b", own+":7002", whole-28)
	out, err := s.run("guest", "ip", "route")
	must(t, err)
	for route := range strings.Lines(out) {
		if !strings.Contains(route, fmt.Sprintf("mtu %d", b.MTU())) {
			t.Errorf("route %s: want an MTU of %d", route, b.MTU())
		}
	}
}

// openWindow sets the peer's receive window of a socket in repair mode.
func openWindow(t *testing.T, fd int) {
	t.Helper()
	var window []byte // struct tcp_repair_window, include/uapi/linux/tcp.h
	const open = 1 << 16
	for _, field := range []uint32{0 /* snd_wl1 */, open /* snd_wnd */, open /* max_window */, open,
		0 /* rcv_wup */} {
		window = binary.NativeEndian.AppendUint32(window, field)
	}
	must(t, unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW, string(window)))
}

// reaches sends a datagram of that size to the guest.
func (s *site) reaches(from, to string, size int) {
	s.t.Helper()
	var in net.PacketConn
	s.in("guest", func() (err error) {
		in, err = net.ListenPacket("udp4", to)
		return err
	})
	s.t.Cleanup(func() { _ = in.Close() })
	_, err := s.dialUDP(from, to).Write(make([]byte, size))
	must(s.t, err)
	must(s.t, in.SetReadDeadline(time.Now().Add(5*time.Second)))
	if n, _, err := in.ReadFrom(make([]byte, size+1)); err != nil || n != size {
		s.t.Errorf("%d bytes of %d arrived: %v", n, size, err)
	}
}

// TestOwnInterface checks that changes that a container made to its interface stay and do no harm.
func TestOwnInterface(t *testing.T) {
	s := newSite(t)
	one := s.container("a", "one")
	again := func() {
		t.Helper()
		must(t, s.nodes["a"].Quiesce(one.IP))
		must(t, s.nodes["a"].EndQuiesce(one.IP))
		s.crash("a")
		s.start("a")
		s.attach("a", "one", one)
		must(t, s.nodes["a"].Route(one.IP, Local("one")))
	}
	const small, renamed = 1000, "own0"
	inside(t, s.ns("a/one"), func(h *netlink.Handle) error {
		eth0, err := h.LinkByName(pool.InsideDevice)
		must(t, err)
		return h.LinkSetMTU(eth0, small)
	})
	again()
	if got := s.mtu("a/one"); got != small {
		t.Errorf("the container's MTU of %d has become %d", small, got)
	}
	inside(t, s.ns("a/one"), func(h *netlink.Handle) error {
		eth0, err := h.LinkByName(pool.InsideDevice)
		must(t, err)
		must(t, h.LinkSetDown(eth0))
		must(t, h.LinkSetName(eth0, renamed))
		return h.LinkSetUp(eth0)
	})
	again()
	inside(t, s.ns("a/one"), func(h *netlink.Handle) error {
		eth0, err := h.LinkByName(renamed)
		must(t, err)
		return h.LinkDel(eth0)
	})
	must(t, s.nodes["a"].Quiesce(one.IP))
	must(t, s.nodes["a"].EndQuiesce(one.IP))
}
