package filter

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"

	"github.com/godwit/godwit/internal/network/pool"
)

func TestConflicts(t *testing.T) {
	port := Published{Protocol: "tcp", Host: netip.MustParseAddr("192.0.2.1"), HostPort: 80}
	for what, c := range map[string]struct {
		other Published
		want  bool
	}{
		"same":         {port, true},
		"each address": {Published{Protocol: "tcp", HostPort: 80}, true},
		"any address":  {Published{Protocol: "tcp", Host: netip.IPv4Unspecified(), HostPort: 80}, true},
		"another address": {Published{Protocol: "tcp", Host: netip.MustParseAddr("192.0.2.2"), HostPort: 80},
			false},
		"another protocol": {Published{Protocol: "udp", HostPort: 80}, false},
		"another port":     {Published{Protocol: "tcp", HostPort: 81}, false},
	} {
		if got := port.Conflicts(c.other); got != c.want || c.other.Conflicts(port) != got {
			t.Errorf("%s: %t, want %t", what, got, c.want)
		}
	}
}

// TestBridgedAlternatives checks that a packet counts as one of a container on a bridge if its address is in
// the set or in any routed network.
func TestBridgedAlternatives(t *testing.T) {
	f := New(Config{Pool: pool.Pool{Prefix: netip.MustParsePrefix("10.88.0.0/16"), Number: 1}})
	if n := len(f.bridgedAlternatives(0, nil)); n != 1 {
		t.Errorf("%d alternatives without routed networks", n)
	}
	f.KnowBridged([]Bridged{{Address: netip.MustParseAddr("172.30.0.2")}},
		[]netip.Prefix{netip.MustParsePrefix("10.89.0.0/16"), netip.MustParsePrefix("10.90.0.0/16")})
	if n := len(f.bridgedAlternatives(0, nil)); n != 3 {
		t.Errorf("%d alternatives with two routed networks", n)
	}
	elements := f.bridgedElements()
	if len(elements) != 1 || string(elements[0].Key) != string([]byte{172, 30, 0, 2}) {
		t.Errorf("set of containers on bridges: %v", elements)
	}
}

// TestAllowed checks that a container that may send is in both sets: with its device, padded, and alone.
func TestAllowed(t *testing.T) {
	f := New(Config{})
	f.KnowContainer("gwc0", netip.MustParseAddr("10.88.1.2"))
	sets := map[string][]nftables.SetElement{
		"gwc0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\n\x58\x01\x02": f.allowed(),
		"\n\x58\x01\x02": f.allowedAddresses(),
	}
	for key, elements := range sets {
		if len(elements) != 1 || string(elements[0].Key) != key {
			t.Errorf("elements %v, want %q", elements, key)
		}
	}
}

// TestSetPeersFails checks that peers that the kernel did not get are not remembered, so that a later change
// does not let them in.
func TestSetPeersFails(t *testing.T) {
	f := New(Config{Namespace: -1, Pool: pool.Pool{Prefix: netip.MustParsePrefix("10.88.0.0/16"), Number: 1}})
	f.KnowPeers(map[int]Peer{2: {}})
	if err := f.SetPeers(map[int]Peer{3: {}}); err == nil {
		t.Fatal("peers are set in a namespace that does not exist")
	}
	if _, known := f.peers[2]; !known || len(f.peers) != 1 {
		t.Errorf("peers are %v", f.peers)
	}
	if err := f.Allow("gwc0", netip.MustParseAddr("10.88.1.2"), true); err == nil || len(f.containers) != 0 {
		t.Errorf("a container may send after %v", err)
	}
}
