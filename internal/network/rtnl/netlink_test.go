package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/pool"
)

func TestPrefixOf(t *testing.T) {
	for _, text := range []string{"10.88.0.0/16", "192.0.2.1/32", "2001:db8::/32"} {
		prefix := netip.MustParsePrefix(text)
		if back, ok := PrefixOf(IPNet(prefix)); !ok || back != prefix {
			t.Errorf("%s became %s, %t", prefix, back, ok)
		}
	}
	if _, ok := PrefixOf(nil); ok {
		t.Error("the default route has a prefix")
	}
}

func TestIsLinkNotFound(t *testing.T) {
	if !IsLinkNotFound(fmt.Errorf("find: %w", netlink.LinkNotFoundError{})) {
		t.Error("a missing device is not recognised")
	}
	if IsLinkNotFound(errors.New("no socket")) || IsLinkNotFound(nil) {
		t.Error("another error is a missing device")
	}
}

// TestRoutes checks that our routes are recognised by their protocol, and lead through the tunnel to a peer's
// own address.
func TestRoutes(t *testing.T) {
	routes := Routes{Pool: pool.Pool{Prefix: netip.MustParsePrefix("10.88.0.0/16"), Number: 1}, Tunnel: 7}
	ip := netip.MustParseAddr("10.88.2.9")
	route := routes.Via(HostNet(ip), 2, unix.RT_TABLE_MAIN)
	if route.Protocol != pool.RouteProtocol || route.LinkIndex != 7 ||
		!route.Gw.Equal(net.IPv4(10, 88, 2, 1)) || !route.Src.Equal(net.IPv4(10, 88, 1, 1)) {
		t.Errorf("route to a peer: %+v", route)
	}
	if !IsHostRoute(ip)(*route) || IsHostRoute(ip.Next())(*route) {
		t.Error("a host route is not recognised")
	}
	if route := routes.Via(AllAddresses(), 2, PeerTable(2)); IsHostRoute(ip)(*route) {
		t.Error("a default route is a host route")
	}
	rule := routes.IngressRule(2, PeerTable(2))
	if rule.Mark != 2<<pool.IngressShift || *rule.Mask != pool.IngressMask || rule.Table != PeerTable(2) {
		t.Errorf("rule of an ingress mark: %+v", rule)
	}
}
