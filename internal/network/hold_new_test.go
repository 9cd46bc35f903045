package network

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestHoldNewConnections holds only packets that open a connection, then all packets, then only those
// again, and then releases them.
func TestHoldNewConnections(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	at := netip.AddrPortFrom(address.IP, 7000)
	client, server := s.tcp("client-b", "a/one", at)
	var listener net.Listener
	s.in("a/one", func() (err error) {
		listener, err = net.Listen("tcp4", at.String())
		return err
	})
	defer func() { _ = listener.Close() }()
	says := func(text string) {
		t.Helper()
		_, err := client.Write([]byte(text))
		must(t, err)
	}
	hears := func(text string) {
		t.Helper()
		must(t, server.SetReadDeadline(time.Now().Add(5*time.Second)))
		heard := make([]byte, len(text))
		if _, err := io.ReadFull(server, heard); err != nil || string(heard) != text {
			t.Fatalf("%q, %v, want %q", heard, err, text)
		}
	}

	hold, err := s.nodes["a"].Prepare(address.IP)
	must(t, err)
	must(t, hold.StartNew(Local("one")))
	dialled := make(chan error, 1)
	go s.in("client-b", func() error {
		conn, err := net.DialTimeout("tcp4", at.String(), 10*time.Second)
		if err == nil {
			_ = conn.Close()
		}
		dialled <- err
		return nil
	})
	eventually(t, "a held SYN", func() bool { return hold.Stats().QueuedPackets > 0 })
	says("all else goes on")
	hears("all else goes on")
	must(t, hold.Start())
	before := hold.Stats()
	says("nothing goes on")
	eventually(t, "held data",
		func() bool { return hold.Stats().QueuedBytes-before.QueuedBytes > int64(len("nothing goes on")) })
	must(t, hold.StartNew(Local("one")))
	hears("nothing goes on")
	if stats := hold.Stats(); stats.QueuedPackets == 0 || len(dialled) != 0 {
		t.Errorf("%+v: the SYN is not held any more", stats)
	}
	must(t, hold.Release(t.Context(), Local("one"), 0))
	must(t, <-dialled)
	if stats := hold.Stats(); stats.DroppedPackets != 0 || stats.ForwardedPackets != stats.HeldPackets {
		t.Errorf("%+v", stats)
	}
	if count := s.counter("a/one", "Tcp", "OutRsts") + s.counter("client-b", "Tcp", "OutRsts"); count != 0 {
		t.Errorf("%d resets", count)
	}
}

// TestHoldRequests holds requests over TCP and UDP at two nodes, while the container at the second node
// sends requests itself and is answered.
func TestHoldRequests(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	s.attach("b", "one", address)
	there, err := s.nodes["b"].Prepare(address.IP)
	must(t, err)
	must(t, there.StartRequests(Local("one")))
	here, err := s.nodes["a"].Prepare(address.IP)
	must(t, err)
	must(t, here.StartRequests(Via("b")))
	service := s.listenUDP("client-a", ":53")
	asking := s.dialUDP("b/one", "198.51.100.2:53")
	buffer := make([]byte, 64)
	ask := func() {
		t.Helper()
		_, err := asking.Write([]byte("who?"))
		must(t, err)
		must(t, service.SetDeadline(time.Now().Add(5*time.Second)))
		_, from, err := service.ReadFrom(buffer)
		must(t, err)
		_, err = service.WriteTo([]byte("me"), from)
		must(t, err)
		must(t, asking.SetDeadline(time.Now().Add(5*time.Second)))
		if n, err := asking.Read(buffer); err != nil || string(buffer[:n]) != "me" {
			t.Fatalf("%q, %v", buffer[:n], err)
		}
	}
	ask()
	served := s.listenUDP("b/one", ":53")
	for client, hold := range map[string]*Hold{"client-a": here, "client-b": there} {
		before := hold.Stats().QueuedPackets
		_, err := s.dialUDP(client, netip.AddrPortFrom(address.IP, 53).String()).Write([]byte(client))
		must(t, err)
		eventually(t, "a held request of "+client,
			func() bool { return hold.Stats().QueuedPackets == before+1 })
	}
	ask()
	must(t, there.Release(t.Context(), Local("one"), 0))
	must(t, here.Release(t.Context(), Via("b"), 0))
	heard := map[string]bool{}
	for range 2 {
		must(t, served.SetDeadline(time.Now().Add(5*time.Second)))
		n, _, err := served.ReadFrom(buffer)
		must(t, err)
		heard[string(buffer[:n])] = true
	}
	if !heard["client-a"] || !heard["client-b"] {
		t.Errorf("heard %v", heard)
	}
}

func (s *site) listenUDP(name, at string) (conn net.PacketConn) {
	s.t.Helper()
	s.in(name, func() (err error) {
		conn, err = net.ListenPacket("udp4", at)
		return err
	})
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *site) dialUDP(name, to string) (conn net.Conn) {
	s.t.Helper()
	s.in(name, func() (err error) {
		conn, err = net.Dial("udp4", to)
		return err
	})
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
