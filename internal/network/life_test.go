package network

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// state lists links, routes, rules and mounts of a node, for comparison.
func (s *site) state(node string) string {
	s.t.Helper()
	var lines []string
	inside(s.t, s.ns(node), func(h *netlink.Handle) error {
		links, err := h.LinkList()
		must(s.t, err)
		for _, link := range links {
			lines = append(lines, "link "+link.Attrs().Name)
		}
		routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
		must(s.t, err)
		for _, route := range routes {
			lines = append(lines, "route "+route.String())
		}
		rules, err := h.RuleList(netlink.FAMILY_V4)
		must(s.t, err)
		for _, rule := range rules {
			lines = append(lines, rule.String())
		}
		return nil
	})
	conn, err := nft.Open(s.ns(node))
	must(s.t, err)
	tables, err := conn.ListTables()
	must(s.t, err)
	for _, table := range tables {
		lines = append(lines, "table "+table.Name)
	}
	spaces, err := filepath.Glob(filepath.Join(s.config(node).RunDir, "netns", "*"))
	must(s.t, err)
	lines = append(lines, spaces...)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// crash loses a node's network as if its process had died.
func (s *site) crash(node string) {
	s.t.Helper()
	n := s.nodes[node]
	s.nodes[node] = nil
	n.dropTuns()
	n.links.Close()
	must(s.t, n.ns.Close())
}

func TestCleanupAfterCrashLeavesNothing(t *testing.T) {
	s := newSite(t)
	must(t, s.nodes["a"].Close())
	must(t, Cleanup(s.config("a")))
	before := s.state("a")
	s.start("a")
	one, two := s.container("a", "one"), s.container("a", "two")
	foreign, err := s.nodes["b"].Lease("three")
	must(t, err)
	s.attach("a", "three", foreign)
	must(t, s.nodes["a"].Route(foreign.IP, Local("three")))
	must(t, s.nodes["a"].Route(two.IP, Via("b")))
	_, err = s.nodes["a"].Hold(one.IP)
	must(t, err)
	s.crash("a")
	must(t, Cleanup(s.config("a")))
	if after := s.state("a"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	must(t, Cleanup(s.config("a")))
}

func TestRestartAfterCrash(t *testing.T) {
	s := newSite(t)
	kept, held, lost := s.container("a", "kept"), s.container("a", "held"), s.container("a", "lost")
	moved := s.container("a", "moved")
	must(t, s.nodes["a"].Route(moved.IP, Via("b")))
	server := netip.AddrPortFrom(kept.IP, 7000)
	s.echo("a/kept", server)
	s.echo("a/held", netip.AddrPortFrom(held.IP, 7000))
	_, err := s.nodes["a"].Hold(held.IP)
	must(t, err)
	file(t, filepath.Join(s.config("a").RunDir, "netns", "half-made"), "")
	s.crash("a")
	s.sees("c", server, "10.88.3.1") // works without the agent

	n, err := New(s.config("a"))
	must(t, err)
	s.nodes["a"] = n
	s.sees("c", server, "10.88.3.1") // works without the agent's list of peers
	s.setPeers("a")
	must(t, n.Reconcile(Keep{Containers: []string{"kept", "held", "moved"},
		Routes: []netip.Addr{kept.IP, held.IP, moved.IP}}))
	s.sees("client-a", server, "198.51.100.2")
	s.sees("client-b", server, "203.0.113.2")
	hold, err := n.Hold(held.IP)
	must(t, err)
	s.attach("a", "held", held)
	must(t, hold.Release(t.Context(), Local("held"), 0))
	s.sees("b", netip.AddrPortFrom(held.IP, 7000), "10.88.2.1")
	if _, err := os.Stat(n.NetnsPath("lost")); err == nil {
		t.Error("the namespace of a container that is not kept is still there")
	}
	if _, err := os.Stat(n.NetnsPath("half-made")); err == nil {
		t.Error("a half-made mount point is still there")
	}
	if state := s.state("a"); strings.Contains(state, lost.IP.String()) ||
		!strings.Contains(state, moved.IP.String()) {
		t.Errorf("after Reconcile:\n%s", state)
	}
	must(t, n.Detach("moved"))
	must(t, n.Close())
	must(t, Cleanup(s.config("a")))
}

// TestRestartLosesNoPacket replaces everything that New makes while a stream runs through it.
func TestRestartLosesNoPacket(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	server := netip.AddrPortFrom(address.IP, 7000)
	socket := s.listen("a/one", server)
	stream := s.send("client-b", server)
	for range 3 {
		mark := stream.sent.Load()
		eventually(t, "500 packets", func() bool { return stream.sent.Load() >= mark+500 })
		must(t, s.nodes["a"].Close())
		s.start("a")
		s.attach("a", "one", address)
		must(t, s.nodes["a"].Route(address.IP, Local("one")))
	}
	stream.stop.Store(true)
	must(t, <-stream.stopped)
	receive(t, socket, 0, stream.sent.Load(), 5*time.Second)
}

func TestStrangersAndFormerPeersAreNotHeard(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	server := netip.AddrPortFrom(address.IP, 7000)
	s.echo("a/one", server)
	s.sees("c", server, "10.88.3.1")
	b := s.config("b")
	only := Peer{Name: "b", Number: b.NodeNumber, Underlay: b.Underlay, Key: s.key("b")}
	must(t, s.nodes["a"].SetPeers([]Peer{only}))
	if got := s.ask("c", server, 100*time.Millisecond); got != "" {
		t.Errorf("a former peer was answered %q", got)
	}
	if state := s.state("a"); strings.Contains(state, "10.88.3.") {
		t.Errorf("something of a former peer is left:\n%s", state)
	}
	s.sees("b", server, "10.88.2.1")
	s.setPeers("a")
	eventually(t, "c is heard again, after a handshake", func() bool {
		return s.ask("c", server, 100*time.Millisecond) == "10.88.3.1"
	})
}

func TestContainerCannotSendAsAnother(t *testing.T) {
	s := newSite(t)
	one, two := s.container("a", "one"), s.container("a", "two")
	must(t, s.nodes["a"].Detach("two"))
	victim := s.listen("client-a", netip.MustParseAddrPort("198.51.100.2:7000"))
	inside(t, s.ns("a/one"), func(h *netlink.Handle) error {
		eth0, err := h.LinkByName(pool.InsideDevice)
		must(t, err)
		return h.AddrAdd(eth0, &netlink.Addr{IPNet: rtnl.HostNet(two.IP)})
	})
	for _, source := range []netip.Addr{two.IP, one.IP} {
		s.in("a/one", func() error {
			dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: source.AsSlice()}}
			socket, err := dialer.Dial("udp4", "198.51.100.2:7000")
			must(t, err)
			defer func() { _ = socket.Close() }()
			_, err = socket.Write([]byte(source.String()))
			return err
		})
	}
	must(t, victim.SetReadDeadline(time.Now().Add(5*time.Second)))
	buffer := make([]byte, 100)
	count, err := victim.Read(buffer)
	must(t, err)
	if got := string(buffer[:count]); got != one.IP.String() {
		t.Errorf("the packet with source %s came through", got)
	}
}

// TestFullSizedPackets checks that a container has the tunnel's MTU, so that its largest packet passes
// unfragmented.
func TestFullSizedPackets(t *testing.T) {
	s := newSite(t)
	one, two := s.container("a", "one"), s.container("b", "two")
	const want = 1500 - 50 - 60 // VXLAN and WireGuard
	if one.MTU != want || s.nodes["a"].MTU() != want {
		t.Errorf("MTU of the container is %d, of the tunnel %d, want %d", one.MTU, s.nodes["a"].MTU(), want)
	}
	at := netip.AddrPortFrom(two.IP, 7000)
	socket := s.listen("b/two", at)
	s.in("a/one", func() error {
		out, err := net.Dial("udp4", at.String())
		must(t, err)
		defer func() { _ = out.Close() }()
		_, err = out.Write(make([]byte, one.MTU-28))
		return err
	})
	must(t, socket.SetReadDeadline(time.Now().Add(5*time.Second)))
	count, err := socket.Read(make([]byte, 2000))
	if err != nil || count != one.MTU-28 {
		t.Errorf("got %d bytes, %v", count, err)
	}
	if made := s.counter("a/one", "Ip", "FragCreates") + s.counter("a", "Ip", "FragCreates"); made != 0 {
		t.Errorf("%d fragments were made", made)
	}
}
