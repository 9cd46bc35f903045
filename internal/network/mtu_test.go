package network

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// restoredSocket is as CRIU makes a connection anew whose peer takes segments of that size.
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
	option := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, maximumSegmentSize), segment)
	must(s.t, unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_OPTIONS, string(option)))
	return fd
}

func segmentOf(t *testing.T, fd int) uint32 {
	t.Helper()
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	must(t, err)
	return info.Snd_mss
}

// TestRestoredSegments: a connection that came with its container has segments as large as before.
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
	const timestamps = 12 // bytes that they take of each segment
	if got := segmentOf(t, fd); got != most-timestamps {
		t.Errorf("segments have %d bytes, want %d", got, most-timestamps)
	}
	s.attach("b", "two", two)
	if got := s.mtu("b/two"); got != two.MTU {
		t.Errorf("attached once more it has an MTU of %d, want %d", got, two.MTU)
	}
}

// TestOwnInterface: what a container has made of its interface stays, and stands in the way of nothing.
func TestOwnInterface(t *testing.T) {
	s := newSite(t)
	one := s.container("a", "one")
	again := func() {
		t.Helper()
		must(t, s.nodes["a"].Silence(one.IP))
		must(t, s.nodes["a"].EndSilence(one.IP))
		s.crash("a")
		s.start("a")
		s.attach("a", "one", one)
		must(t, s.nodes["a"].Route(one.IP, Local("one")))
	}
	const small, renamed = 1000, "own0"
	inside(t, s.ns("a/one"), func(h *netlink.Handle) error {
		eth0, err := h.LinkByName(insideDevice)
		must(t, err)
		return h.LinkSetMTU(eth0, small)
	})
	again()
	if got := s.mtu("a/one"); got != small {
		t.Errorf("the container's MTU of %d has become %d", small, got)
	}
	inside(t, s.ns("a/one"), func(h *netlink.Handle) error {
		eth0, err := h.LinkByName(insideDevice)
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
	must(t, s.nodes["a"].Silence(one.IP))
	must(t, s.nodes["a"].EndSilence(one.IP))
}
