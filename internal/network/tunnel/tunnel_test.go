package tunnel

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// TestConsistentPeers checks that a node that claims the address of another node, or of this one, keeps no
// other peer out.
func TestConsistentPeers(t *testing.T) {
	own, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	n := New(Config{NodeName: "a", Underlay: own,
		Pool: pool.Pool{Prefix: netip.MustParsePrefix("10.88.0.0/16"), Number: 1}})
	n.peers = map[int]Peer{3: {Name: "c", Number: 3, Underlay: other}}
	kept, contradictions := n.Consistent([]Peer{
		{Name: "b", Number: 2, Underlay: other}, {Name: "c", Number: 3, Underlay: other},
		{Name: "d", Number: 4, Underlay: own},
		{Name: "e", Number: 5, Underlay: netip.MustParseAddr("192.0.2.5")},
		{Name: "f", Number: 6, Underlay: netip.MustParseAddr("10.88.1.1")},
	})
	var names []string
	for _, peer := range kept {
		names = append(names, peer.Name)
	}
	if got := strings.Join(names, " "); got != "c e" || len(contradictions) != 3 {
		t.Errorf("kept %s, left out %v", got, contradictions)
	}
	kept, contradictions = n.Consistent([]Peer{
		{Name: "c", Number: 3, Underlay: other, Key: wireguard.Key{1}},
		{Name: "e", Number: 5, Underlay: netip.MustParseAddr("192.0.2.5"), Key: wireguard.Key{1}},
	})
	if len(kept) != 1 || kept[0].Name != "c" || len(contradictions) != 1 {
		t.Errorf("of two with one key %v are kept, %v left out", kept, contradictions)
	}
	if kept, contradictions := n.Consistent(nil); len(kept) != 0 || len(contradictions) != 0 {
		t.Errorf("of no peers %v are kept, %v left out", kept, contradictions)
	}
}
