package network

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// run a program in a namespace of the site.
func (s *site) run(where string, args ...string) (string, error) {
	s.t.Helper()
	var out []byte
	var err error
	s.in(where, func() error {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput() //nolint:gosec // the test's own
		return nil
	})
	return string(out), err
}

// must run a program in a namespace of the site.
func (s *site) must(where string, args ...string) {
	s.t.Helper()
	if out, err := s.run(where, args...); err != nil {
		s.t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// away has a container on a bridge of node b be at node a, which answers for it itself, and be reached by ports of b.
func (s *site) away(ip netip.Addr, ports ...Published) {
	s.t.Helper()
	s.must("a", "ip", "address", "add", ip.String()+"/32", "dev", "lo")
	a, b := s.nodes["a"], s.nodes["b"]
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bridged[ip] = &bridged{Container: "gone", Address: ip, Via: a.config.NodeNumber, Ports: ports}
	must(s.t, os.MkdirAll(b.config.StateDir, 0o700))
	must(s.t, b.applyFirewall())
	must(s.t, b.routeBridged())
	_, clients, err := net.ParseCIDR("203.0.113.0/24")
	must(s.t, err)
	must(s.t, a.links.RouteReplace(a.via(clients, b.config.NodeNumber, unix.RT_TABLE_MAIN)))
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

// dial from an address to another; it fails soon.
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

// TestYieldPorts: the published port of a container that has left leads to it, until a container here has it, and never by loopback.
func TestYieldPorts(t *testing.T) {
	s := newSite(t)
	ip := netip.MustParseAddr("172.30.0.2")
	s.away(ip, Published{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}, Published{Protocol: "tcp", HostPort: 8081, ContainerPort: 80})
	s.serve("a", ip.String()+":80")
	for _, port := range []string{"8080", "8081"} {
		must(t, s.dial("client-b", "", "203.0.113.1:"+port))
	}
	if err := s.dial("b", "", "127.0.0.1:8080"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v, want a refusal: nobody listens there", err)
	}
	b := s.nodes["b"]
	for _, none := range []Published{{Protocol: "udp", HostPort: 8080}, {Protocol: "tcp", HostPort: 80}} {
		if yielded, err := b.YieldPorts([]Published{none}); err != nil || len(yielded) != 0 {
			t.Errorf("%v, %v", yielded, err)
		}
	}
	yielded, err := b.YieldPorts([]Published{{Protocol: "tcp", Host: netip.MustParseAddr("203.0.113.1"), HostPort: 8080, ContainerPort: 99}})
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
	routes, err := b.links.RouteListFiltered(unix.AF_INET, &netlink.Route{Dst: hostNet(ip)}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) != 0 {
		t.Errorf("%v, %v", routes, err)
	}
}
