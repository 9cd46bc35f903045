package network

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/filter"
	"github.com/godwit/godwit/internal/network/flows"
	"github.com/godwit/godwit/internal/network/foreign"
	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

func tuple(protocol uint8, from string, fromPort uint16, to string, toPort uint16) netlink.IPTuple {
	return netlink.IPTuple{Protocol: protocol, SrcIP: net.ParseIP(from), SrcPort: fromPort,
		DstIP: net.ParseIP(to), DstPort: toPort}
}

// tcpFlow is a connection in a state of connection tracking.
func tcpFlow(state uint8, forward, reverse netlink.IPTuple) *netlink.ConntrackFlow {
	return &netlink.ConntrackFlow{Forward: forward, Reverse: reverse,
		ProtoInfo: &netlink.ProtoInfoTCP{State: state}}
}

// flowTimes returns when the saved destinations for a client's port expire.
func (s *site) flowTimes(node string, port uint16) (times []time.Duration) {
	s.t.Helper()
	conn, err := nft.Open(s.nodes[node].ns)
	must(s.t, err)
	sets, err := flows.Describe(&nftables.Table{Name: flows.Table, Family: nftables.TableFamilyIPv4})
	must(s.t, err)
	elements, err := conn.GetSetElements(sets.To)
	must(s.t, err)
	for _, e := range elements {
		if bytes.Equal(e.Key[8:10], filter.BigEndian(port)) ||
			bytes.Equal(e.Key[16:18], filter.BigEndian(port)) {
			times = append(times, e.Expires)
		}
	}
	return times
}

// TestFlowsLast checks that a saved entry lasts as long as its connection is used, and expires soon after
// the connection has ended in any way.
func TestFlowsLast(t *testing.T) {
	s := newSite(t)
	address := s.container("a", "one")
	for i, c := range []struct {
		what        string
		port        uint16
		linger      int
		serverFirst bool
	}{
		{"reset by the client", 5000, 0, false},
		{"reset by the server, on the same ports", 5000, 0, true},
		{"closed by the client", 5001, -1, false},
		{"closed by the server", 5002, -1, true},
	} {
		saved := flows.ElementsOf([]*netlink.ConntrackFlow{tcpFlow(nl.TCP_CONNTRACK_ESTABLISHED,
			tuple(6, "198.51.100.2", c.port, "198.51.100.1", 8080),
			tuple(6, address.IP.String(), 80, "198.51.100.2", c.port))}, address.IP)
		for i := range saved.To {
			saved.To[i].Timeout = time.Hour
		}
		must(t, s.nodes["a"].flows().Add(saved))
		client, server := s.savedConnection(address.IP, int(c.port))
		_, err := client.Write([]byte("hello"))
		must(t, err)
		_, err = io.ReadFull(server, make([]byte, 5))
		must(t, err)
		eventually(t, "both ways in use: "+c.what, func() bool {
			times := s.flowTimes("a", c.port)
			return len(times) == 2 && slices.Min(times) > flows.Idle-time.Minute
		})
		ends := []*net.TCPConn{client, server}
		if c.serverFirst {
			slices.Reverse(ends)
		}
		must(t, ends[0].SetLinger(c.linger))
		must(t, ends[0].Close())
		if _, err = ends[1].Read(make([]byte, 1)); err == nil {
			t.Error("read after the end")
		}
		must(t, ends[1].Close())
		eventually(t, "an end: "+c.what,
			func() bool { return slices.Max(s.flowTimes("a", c.port)) <= flows.Over })
		if i > 0 && len(s.flowTimes("a", 5000)) != 2 {
			t.Error("one that has just ended is forgotten")
		}
	}
	must(t, s.nodes["a"].flows().Forget(address.IP, s.nodes["a"].records.count() == 0))
}

// savedConnection makes a connection to port 80 of a container through port 8080 of node a. Only the saved
// entries translate its packets.
func (s *site) savedConnection(ip netip.Addr, port int) (client, server *net.TCPConn) {
	s.t.Helper()
	var listener net.Listener
	s.in("a/one", func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(ip, 80).String())
		return err
	})
	defer func() { _ = listener.Close() }()
	s.in("client-a", func() error {
		from := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}, Timeout: 5 * time.Second,
			Control: func(_, _ string, raw syscall.RawConn) error {
				return raw.Control(func(fd uintptr) {
					_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET,
						unix.SO_REUSEADDR, 1)
				})
			}}
		conn, err := from.Dial("tcp4", "198.51.100.1:8080")
		if err == nil {
			client = conn.(*net.TCPConn)
		}
		return err
	})
	conn, err := listener.Accept()
	must(s.t, err)
	return client, conn.(*net.TCPConn)
}

// TestForgottenConnections checks that connections to a container that has left continue, although the
// engine deletes their conntrack entries and would masquerade the container's next packets. Some
// connections came in at this node, and some at another.
func TestForgottenConnections(t *testing.T) {
	s := newSite(t)
	b, ip := s.nodes["b"], netip.MustParseAddr("172.30.0.2")
	s.away(ip)
	s.must("b", "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "172.30.0.0/24", "!", "-o", engineBridge,
		"-j", "MASQUERADE")
	s.must("b", "iptables", "-N", foreign.PassChain)
	s.must("b", "iptables", "-P", "FORWARD", "DROP") // as Docker
	s.must("b", "iptables", "-A", "FORWARD", "-j", foreign.PassChain)
	s.must("b", "iptables", "-A", "FORWARD", "-i", "client0", "-j", "ACCEPT")
	must(t, b.KeepPassing())
	_, far, err := net.ParseCIDR("198.18.0.1/32")
	must(t, err)
	s.must("c", "ip", "address", "add", far.String(), "dev", "lo")
	toContainer := s.nodes["c"].routes.Via(rtnl.HostNet(ip), b.config.NodeNumber, unix.RT_TABLE_MAIN)
	toContainer.Src = far.IP
	must(t, s.nodes["c"].links.RouteReplace(toContainer))
	must(t, s.nodes["a"].links.RouteReplace(s.nodes["a"].routes.Via(far, b.config.NodeNumber,
		unix.RT_TABLE_MAIN)))
	var clients, servers []net.Conn
	for i, from := range []string{"client-b", "c"} {
		client, server := s.tcp(from, "a", netip.AddrPortFrom(ip, 80))
		clients, servers = append(clients, client), append(servers, server)
		client, server = s.udp(from, "a", netip.AddrPortFrom(ip, uint16(90+i)))
		clients, servers = append(clients, client), append(servers, server)
	}
	must(t, b.SaveConntrack(ip))
	forget := func() {
		t.Helper()
		handle, err := netlink.NewHandleAt(b.ns, unix.NETLINK_NETFILTER)
		must(t, err)
		defer handle.Close()
		must(t, handle.ConntrackTableFlush(netlink.ConntrackTable))
	}
	for range 2 {
		forget()
		for i, server := range servers {
			_, err := server.Write([]byte("answer"))
			must(t, err)
			must(t, clients[i].SetReadDeadline(time.Now().Add(5*time.Second)))
			if _, err := io.ReadFull(clients[i], make([]byte, 6)); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		}
	}
	must(t, b.ForgetBridged(ip))
}

// udp opens a flow of datagrams in which the client has sent something.
func (s *site) udp(from, to string, at netip.AddrPort) (client, server net.Conn) {
	s.t.Helper()
	var listener *net.UDPConn
	s.in(to, func() (err error) {
		listener, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	s.in(from, func() (err error) {
		client, err = net.Dial("udp4", at.String())
		return err
	})
	_, err := client.Write([]byte("question"))
	must(s.t, err)
	must(s.t, listener.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, peer, err := listener.ReadFromUDPAddrPort(make([]byte, 8))
	must(s.t, err)
	must(s.t, listener.Close())
	s.in(to, func() (err error) {
		server, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(at), net.UDPAddrFromAddrPort(peer))
		return err
	})
	s.t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

// TestFlowsOfOlderVersion checks that a table without ingress marks, made by an older version, is used and
// emptied.
func TestFlowsOfOlderVersion(t *testing.T) {
	s := newSite(t)
	ip := netip.MustParseAddr("172.30.0.2")
	s.away(ip)
	flow := tcpFlow(nl.TCP_CONNTRACK_ESTABLISHED, tuple(6, "10.99.1.2", 5003, ip.String(), 80),
		tuple(6, ip.String(), 80, "10.99.1.2", 5003))
	flow.Mark = 1 << pool.IngressShift
	saved := flows.ElementsOf([]*netlink.ConntrackFlow{flow}, ip)
	b := s.nodes["b"]
	for range 2 {
		must(t, b.flows().Add(saved))
		if out, err := s.run("b", "nft", "list", "map", "ip", flows.Table, flows.MapIngress); err != nil ||
			!strings.Contains(out, ip.String()) {
			t.Errorf("%s (%v)", out, err)
		}
		if out, err := s.run("b", "nft", "list", "chain", "ip", flows.Table, "ingress"); err != nil ||
			strings.Count(out, "ct state") != 2 {
			t.Errorf("%s (%v)", out, err)
		}
		s.must("b", "nft", "delete", "chain", "ip", flows.Table, "ingress")
		s.must("b", "nft", "delete", "map", "ip", flows.Table, flows.MapIngress)
		must(t, b.flows().Forget(ip, b.records.count() == 0))
	}
}

// TestForgetIngressMarks checks that removing the saved marks of one container leaves those of others.
func TestForgetIngressMarks(t *testing.T) {
	s := newSite(t)
	gone, stays := netip.MustParseAddr("172.30.0.2"), netip.MustParseAddr("172.30.0.3")
	s.away(gone)
	b := s.nodes["b"]
	for _, ip := range []netip.Addr{gone, stays} {
		flow := tcpFlow(nl.TCP_CONNTRACK_ESTABLISHED,
			tuple(6, "10.99.1.2", 5003, ip.String(), 80), tuple(6, ip.String(), 80, "10.99.1.2", 5003))
		flow.Mark = 1 << pool.IngressShift
		must(t, b.flows().Add(flows.ElementsOf([]*netlink.ConntrackFlow{flow}, ip)))
	}
	must(t, b.flows().Forget(gone, b.records.count() == 0))
	out, err := s.run("b", "nft", "list", "map", "ip", flows.Table, flows.MapIngress)
	if err != nil || strings.Contains(out, gone.String()+" ") || !strings.Contains(out, stays.String()+" ") {
		t.Errorf("%s (%v)", out, err)
	}
}

// TestClosingOpensNothing checks that no connection to or from a container is opened between the moment at
// which its conntrack entries are saved and the end of its removal: the engine would delete the entry of
// that connection, too. If the removal fails, the container can be reached again.
func TestClosingOpensNothing(t *testing.T) {
	s := newSite(t)
	b, ip := s.nodes["b"], netip.MustParseAddr("172.30.0.2")
	s.away(ip)
	server, client := ip.String()+":80", "203.0.113.2:7000"
	s.serve("a", server)
	s.serve("client-b", client)
	reach := func() (to, from error) {
		return s.dial("client-b", "", server), s.dial("a", ip.String(), client)
	}
	if to, from := reach(); to != nil || from != nil {
		t.Fatalf("before: %v, %v", to, from)
	}
	must(t, b.SaveConntrack(ip))
	if to, from := reach(); to == nil || from == nil {
		t.Errorf("while the engine deletes entries: %v, %v", to, from)
	}
	must(t, b.OpenAgain(ip))
	if to, from := reach(); to != nil || from != nil {
		t.Errorf("when the engine has failed: %v, %v", to, from)
	}
}
