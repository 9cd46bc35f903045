package cluster

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/godwit/godwit/internal/wire/identity"
)

// TestKnownHost: nodes have reserved places for handshakes, whether they are known by address or by host
// name.
func TestKnownHost(t *testing.T) {
	p := newMembers(t, "a", "b")[0]
	p.Learn([]identity.Node{
		{Name: "c", Number: 3, Address: "192.0.2.3:7443"}, {Name: "d", Number: 4, Address: "d.example:7443"},
		{Name: "e", Number: 5, Address: "[2001:db8::5]:7443"},
		{Name: "f", Number: 6, Address: "f.example:7443"},
	})
	found := map[string][]netip.Addr{
		"d.example": {netip.MustParseAddr("::ffff:192.0.2.4"), netip.MustParseAddr("2001:db8::4")},
		"f.example": make([]netip.Addr, 1000),
	}
	found["f.example"][999] = netip.MustParseAddr("192.0.2.6")
	p.Hosts.lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
		if addresses, is := found[host]; is {
			return addresses, nil
		}
		return nil, errors.New("no such host")
	}
	known := func(when string, want map[string]bool) {
		t.Helper()
		for host, is := range want {
			if got := p.Hosts.Known(host); got != is {
				t.Errorf("%s, %q: %t", when, host, got)
			}
		}
	}
	known("before a lookup", map[string]bool{
		"192.0.2.3": true, "::ffff:192.0.2.3": true, "192.0.2.4": false, "192.0.2.9": false,
		"127.0.0.1": false,
		"":          false, "d.example": false, "2001:db8::5": true, "2001:db8:0::5": true,
	})
	p.Hosts.refresh(t.Context(), p.Hosts.names())
	known("by its name", map[string]bool{
		"192.0.2.4": true, "::ffff:192.0.2.4": true, "2001:db8::4": true,
		"192.0.2.9": false, "192.0.2.6": false,
	})
	delete(found, "d.example")
	p.Hosts.refresh(t.Context(), p.Hosts.names())
	known("when it cannot be looked up", map[string]bool{"192.0.2.4": true})
	p.Hosts.refresh(t.Context(), nil)
	known("when it is no node", map[string]bool{"192.0.2.4": false})
}
