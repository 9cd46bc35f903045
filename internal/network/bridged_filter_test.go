package network

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/foreign"
	"github.com/godwit/godwit/internal/network/nft"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// run runs a program in a namespace of the site.
func (s *site) run(where string, args ...string) (string, error) {
	s.t.Helper()
	var out []byte
	var err error
	s.in(where, func() error {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return nil
	})
	return string(out), err
}

// must runs a program in a namespace of the site, which must succeed.
func (s *site) must(where string, args ...string) {
	s.t.Helper()
	if out, err := s.run(where, args...); err != nil {
		s.t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// away places a container on a bridge of node b at node a, which itself has the address, and publishes
// ports of b for it.
func (s *site) away(ip netip.Addr, ports ...Published) {
	s.t.Helper()
	s.must("a", "ip", "address", "add", ip.String()+"/32", "dev", "lo")
	a, b := s.nodes["a"], s.nodes["b"]
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records.put(bridged{Container: "gone", Address: ip, Via: a.config.NodeNumber, Ports: ports})
	must(s.t, os.MkdirAll(b.config.StateDir, 0o700))
	must(s.t, b.filterBridged())
	must(s.t, b.routeBridged())
	_, clients, err := net.ParseCIDR("203.0.113.0/24")
	must(s.t, err)
	must(s.t, a.links.RouteReplace(a.routes.Via(clients, b.config.NodeNumber, unix.RT_TABLE_MAIN)))
}

// guest makes a container named guest on the bridge of a node's engine, and gives the bridge an address.
func (s *site) guest(node, gateway, address string) {
	s.t.Helper()
	s.onBridge(node, "guest", address)
	s.must(node, "ip", "address", "add", gateway, "dev", engineBridge)
	router, _, _ := strings.Cut(gateway, "/")
	s.must("guest", "ip", "route", "add", "default", "via", router)
}

// serve counts connections to an address.
func (s *site) serve(where, at string) {
	s.t.Helper()
	var listener net.Listener
	s.in(where, func() (err error) {
		listener, err = net.Listen("tcp4", at)
		return err
	})
	s.t.Cleanup(func() { _ = listener.Close() })
}

// dial connects from one address to another, and gives up soon.
func (s *site) dial(where, from, to string) (err error) {
	s.t.Helper()
	s.in(where, func() error {
		dialer := net.Dialer{Timeout: 1500 * time.Millisecond}
		if from != "" {
			dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		conn, failed := dialer.Dial("tcp4", to)
		if err = failed; err == nil {
			_ = conn.Close()
		}
		return nil
	})
	return err
}

// TestYieldPorts checks that the published port of a container that has left leads to the container until a
// container here takes the port, and never from loopback.
func TestYieldPorts(t *testing.T) {
	s := newSite(t)
	ip := netip.MustParseAddr("172.30.0.2")
	s.away(ip, Published{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
		Published{Protocol: "tcp", HostPort: 8081, ContainerPort: 80})
	s.serve("a", ip.String()+":80")
	for _, port := range []string{"8080", "8081"} {
		must(t, s.dial("client-b", "", "203.0.113.1:"+port))
	}
	if err := s.dial("b", "", "127.0.0.1:8080"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v, want a refusal: nobody listens there", err)
	}
	b := s.nodes["b"]
	for _, none := range []Published{{Protocol: "udp", HostPort: 8080},
		{Protocol: "tcp", HostPort: 80}} {
		if yielded, err := b.YieldPorts([]Published{none}); err != nil || len(yielded) != 0 {
			t.Errorf("%v, %v", yielded, err)
		}
	}
	yielded, err := b.YieldPorts([]Published{{Protocol: "tcp",
		Host:     netip.MustParseAddr("203.0.113.1"),
		HostPort: 8080, ContainerPort: 99}})
	if err != nil || len(yielded) != 1 || yielded[0].HostPort != 8080 {
		t.Errorf("%v, %v", yielded, err)
	}
	if err := s.dial("client-b", "", "203.0.113.1:8080"); err == nil {
		t.Error("the port still leads to the container that has left")
	}
	must(t, s.dial("client-b", "", "203.0.113.1:8081"))
	must(t, b.ForgetStrangers(func(number int) bool { return number == 1 }))
	if len(b.BridgedPlaces()) != 1 {
		t.Error("what a member has is forgotten")
	}
	must(t, b.ForgetStrangers(func(number int) bool { return number != 1 }))
	if places := b.BridgedPlaces(); len(places) != 0 {
		t.Errorf("%v, and its node is none", places)
	}
	routes, err := b.links.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: rtnl.HostNet(ip)},
		netlink.RT_FILTER_DST)
	if err != nil || len(routes) != 0 {
		t.Errorf("%v, %v", routes, err)
	}
}

// TestPass runs beside a filter that drops unknown packets. It checks that packets of containers that have
// left are forwarded, that nothing else from other nodes is, and that this holds after the filter is
// recreated.
func TestPass(t *testing.T) {
	s := newSite(t)
	ip := netip.MustParseAddr("172.30.0.2")
	s.away(ip)
	filter := func() {
		t.Helper()
		s.must("b", "iptables", "-N", foreign.PassChain)
		s.must("b", "iptables", "-P", "FORWARD", "DROP")
		s.must("b", "iptables", "-A", "FORWARD", "-j", foreign.PassChain)
		s.must("b", "iptables", "-A", "FORWARD", "-i", "client0", "-j", "ACCEPT")
	}
	filter()
	b := s.nodes["b"]
	s.serve("a", ip.String()+":80")
	s.serve("client-b", "203.0.113.2:7000")
	if err := s.dial("client-b", "", ip.String()+":80"); err == nil {
		t.Fatal("the other filter drops nothing")
	}
	must(t, b.KeepPassing())
	must(t, s.dial("client-b", "", ip.String()+":80"))
	if err := s.dial("a", ip.String(), "203.0.113.2:7000"); err == nil {
		t.Error("what another node sends from the container's address is let through to anybody")
	}
	s.must("b", "iptables", "-F")
	s.must("b", "iptables", "-X")
	must(t, b.KeepPassing()) // the chain does not exist
	filter()
	must(t, b.KeepPassing())
	must(t, s.dial("client-b", "", ip.String()+":80"))
	must(t, b.ForgetBridged(ip))
	if out, _ := s.run("b", "iptables", "-S", foreign.PassChain); strings.Contains(out, "ACCEPT") {
		t.Errorf("left: %s", out)
	}
	must(t, b.KeepPassing())
	if out, _ := s.run("b", "iptables", "-S", foreign.PassChain); strings.Contains(out, "ACCEPT") {
		t.Errorf("made for nothing: %s", out)
	}
}

// TestPassRoutedNetwork checks that packets from other nodes enter a routed network only if they come from
// the same network or from nodes, and that only answers leave it.
func TestPassRoutedNetwork(t *testing.T) {
	s := newSite(t)
	b := s.nodes["b"]
	s.guest("b", "10.89.2.1/16", "10.89.2.5/16")
	s.must("b", "iptables", "-N", foreign.PassChain)
	s.must("b", "iptables", "-P", "FORWARD", "DROP")
	s.must("b", "iptables", "-A", "FORWARD", "-j", foreign.PassChain)
	// as Docker since 28
	s.must("b", "iptables", "-t", "raw", "-A", "PREROUTING", "-d", "10.89.2.5", "!", "-i", engineBridge,
		"-j", "DROP")
	must(t,
		b.SetRoutedNetworks([]RoutedNetwork{{Device: engineBridge,
			Subnet: netip.MustParsePrefix("10.89.0.0/16")}}))
	s.serve("guest", "10.89.2.5:80")
	s.serve("client-b", "203.0.113.2:7000")
	s.must("a", "ip", "address", "add", "10.89.1.7/32", "dev", "lo")
	a := s.nodes["a"]
	for _, to := range []string{"10.89.2.0/24", "203.0.113.0/24"} {
		_, prefix, err := net.ParseCIDR(to)
		must(t, err)
		must(t, a.links.RouteReplace(a.routes.Via(prefix, b.config.NodeNumber, unix.RT_TABLE_MAIN)))
	}
	must(t, s.dial("a", "10.89.1.7", "10.89.2.5:80")) // another container of the routed network
	must(t, s.dial("a", "", "10.89.2.5:80"))          // the node
	if err := s.dial("a", "192.0.2.1", "10.89.2.5:80"); err == nil {
		t.Error("the filter lets anybody into the routed network")
	}
	if err := s.dial("a", "10.89.1.7", "203.0.113.2:7000"); err == nil {
		t.Error("the filter passes packets from the routed network at another node to anybody")
	}
	if err := s.dial("client-b", "", "10.89.2.5:80"); err == nil {
		t.Error("anybody outside reaches it directly")
	}
	must(t, b.SetRoutedNetworks(nil))
	must(t, b.KeepPassing())
	if out, err := s.run("b", "iptables", "-t", "raw", "-S", "PREROUTING"); err != nil ||
		strings.Contains(out, "devgroup") {
		t.Errorf("left: %s (%v)", out, err)
	}
}

// TestBlockedARP checks that a container does not answer ARP on its bridge until it has arrived, and
// answers immediately after that.
func TestBlockedARP(t *testing.T) {
	s := newSite(t)
	n := s.nodes["a"]
	s.guest("a", "172.30.0.1/24", "172.30.0.2/24")
	ip := netip.MustParseAddr("172.30.0.2")
	must(t, os.MkdirAll(n.config.StateDir, 0o700))
	must(t, n.AdoptBridged(t.Context(), filepath.Join(s.dir, "guest"),
		Bridged{Container: "guest", Address: ip, From: "b"}))
	defer func() { must(t, n.Detach("guest")) }()
	s.serve("guest", "172.30.0.2:80")
	if err := s.dial("a", "", "172.30.0.2:80"); err == nil {
		t.Error("it can be reached")
	}
	known := func() bool {
		out, err := s.run("a", "ip", "neighbour", "show", "172.30.0.2")
		return err == nil && strings.Contains(out, "lladdr")
	}
	if known() {
		t.Error("it answers ARP")
	}
	must(t, n.Route(ip, Local("guest")))
	must(t, s.dial("a", "", "172.30.0.2:80"))
	if out, err := s.run("guest", "nft", "list", "tables"); err == nil &&
		strings.Contains(out, nft.TableName) {
		t.Errorf("left: %s", out)
	}
}
