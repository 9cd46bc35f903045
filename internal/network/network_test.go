package network

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echo serves UDP in a namespace: it answers each datagram with the sender's address as the server saw it.
func (s *site) echo(where string, at netip.AddrPort) {
	s.t.Helper()
	var socket *net.UDPConn
	s.in(where, func() (err error) {
		socket, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	s.t.Cleanup(func() { _ = socket.Close() })
	go func() {
		buffer := make([]byte, 65536)
		for {
			_, from, err := socket.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			if _, err := socket.WriteToUDPAddrPort([]byte(from.Addr().String()), from); err != nil {
				continue // the test sees that no answer comes
			}
		}
	}()
}

// ask sends a datagram and returns the answer, or "" if none comes in time.
func (s *site) ask(where string, to netip.AddrPort, patience time.Duration) string {
	s.t.Helper()
	return s.askBy(where, nil, to, patience)
}

// askFrom asks from a fixed port, so that it is always the same flow.
func (s *site) askFrom(where string, port int, to netip.AddrPort) string {
	s.t.Helper()
	return s.askBy(where, &net.UDPAddr{Port: port}, to, 3*time.Second)
}

// askBy does the work of ask and askFrom.
func (s *site) askBy(where string, from *net.UDPAddr, to netip.AddrPort, patience time.Duration) string {
	s.t.Helper()
	var socket *net.UDPConn
	s.in(where, func() (err error) {
		socket, err = net.DialUDP("udp4", from, net.UDPAddrFromAddrPort(to))
		return err
	})
	defer func() { _ = socket.Close() }()
	if _, err := socket.Write([]byte("who am I?")); err != nil {
		return "send: " + err.Error()
	}
	must(s.t, socket.SetReadDeadline(time.Now().Add(patience)))
	buffer := make([]byte, 1500)
	count, err := socket.Read(buffer)
	if err != nil {
		return ""
	}
	return string(buffer[:count])
}

// sees asserts that a server at an address is reached from a namespace and sees this source address.
func (s *site) sees(where string, to netip.AddrPort, source string) {
	s.t.Helper()
	if got := s.ask(where, to, 3*time.Second); got != source {
		s.t.Errorf("%s asked %s: answer %q, want to be seen as %q", where, to, got, source)
	}
}

// TestContainerWithoutMultipath checks that a server in a container that asks for MPTCP gets TCP, and that
// the node's own programs still get MPTCP.
func TestContainerWithoutMultipath(t *testing.T) {
	s := newSite(t)
	s.container("a", "one")
	for where, want := range map[string]error{"a": nil, "a/one": unix.ENOPROTOOPT} {
		s.in(where, func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
			if !errors.Is(err, want) {
				t.Errorf("%s: MPTCP socket: %v, want %v", where, err, want)
			}
			if err == nil {
				return unix.Close(fd)
			}
			return nil
		})
	}
}

func TestReachable(t *testing.T) {
	s := newSite(t)
	one, two := s.container("a", "one"), s.container("b", "two")
	server := netip.AddrPortFrom(one.IP, 7000)
	s.echo("a/one", server)
	for where, source := range map[string]string{
		"a": "10.88.1.1", "b": "10.88.2.1", "c": "10.88.3.1", "b/two": two.IP.String(),
		"a/one":    one.IP.String(),
		"client-a": "198.51.100.2", "client-b": "203.0.113.2",
	} {
		s.sees(where, server, source)
	}
}

func TestMovedContainer(t *testing.T) {
	s := newSite(t)
	address, two := s.container("a", "one"), s.container("c", "two")
	server := netip.AddrPortFrom(address.IP, 7000)
	outside := netip.MustParseAddrPort("198.51.100.2:7001")
	s.echo("client-a", outside)
	s.sees("a/one", outside, "198.51.100.1") // masqueraded at home

	s.attach("b", "one", address)
	s.echo("b/one", server)
	if got := s.ask("client-b", server, 100*time.Millisecond); got != "" {
		t.Errorf("a container that is not plugged in answered %q", got)
	}
	must(t, s.nodes["a"].Route(address.IP, Via("b")))
	must(t, s.nodes["b"].Route(address.IP, Local("one")))
	for where, source := range map[string]string{
		"a": "10.88.1.1", "b": "10.88.2.1", "c": "10.88.3.1", "c/two": two.IP.String(),
		"client-a": "198.51.100.2", "client-b": "203.0.113.2",
	} {
		s.sees(where, server, source)
	}
	s.sees("b/one", outside, "198.51.100.1") // still masqueraded at home
	if got := s.ask("a/one", outside, 100*time.Millisecond); got != "" {
		t.Errorf("the copy that stayed behind was heard: %q", got)
	}
	must(t, s.nodes["a"].Detach("one"))
	s.sees("client-a", server, "198.51.100.2")

	s.attach("a", "one", address)
	must(t, s.nodes["a"].Route(address.IP, Local("one")))
	must(t, s.nodes["b"].Unroute(address.IP))
	must(t, s.nodes["b"].Detach("one"))
	s.echo("a/one", server)
	for where, source := range map[string]string{"b": "10.88.2.1", "client-a": "198.51.100.2",
		"client-b": "203.0.113.2"} {
		s.sees(where, server, source)
	}
}

// TestQuiesce checks that no packet of a quiesced container arrives, neither elsewhere nor within the
// container, until EndQuiesce. It also covers a network that has just started, which does not know whether
// the container is quiesced.
func TestQuiesce(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	at := netip.MustParseAddrPort("127.0.0.1:7000")
	own, elsewhere := netip.AddrPortFrom(address.IP, 7000), netip.MustParseAddrPort("10.88.1.1:7000")
	s.echo("a/one", at)
	s.echo("a/one", own)
	s.echo("a", elsewhere)
	for range 2 {
		must(t, s.nodes["a"].Quiesce(address.IP))
		for _, to := range []netip.AddrPort{at, own, elsewhere} {
			if got := s.ask("a/one", to, 50*time.Millisecond); got != "" {
				t.Errorf("the quiesced container asked %s: %q", to, got)
			}
		}
		must(t, s.nodes["a"].EndQuiesce(address.IP))
		s.sees("a/one", at, "127.0.0.1")
		s.sees("a/one", own, address.IP.String())
		s.sees("a/one", elsewhere, address.IP.String())
		s.crash("a")
		s.start("a")
		s.attach("a", "one", address)
	}
	must(t, s.nodes["a"].EndQuiesce(netip.MustParseAddr("10.88.1.250")))
}
