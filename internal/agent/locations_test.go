package agent

import (
	"net/netip"
	"testing"
	"time"
)

// TestMayRelease: only the node that has a container may say that it is no more, until no node has
// told of it for a while.
func TestMayRelease(t *testing.T) {
	address := netip.MustParseAddr("10.88.1.2")
	for what, c := range map[string]struct {
		at   place
		b, c bool // whether these nodes may
	}{
		"b has it":           {place{node: "b", container: "one"}, true, false},
		"b has just lost it": {place{node: "b", container: "one", left: time.Now()}, true, false},
		"b lost it some time ago": {place{node: "b", container: "one",
			left: time.Now().Add(-2 * unclaimedFor)}, true, true},
	} {
		l := &locations{away: map[netip.Addr]place{address: c.at}}
		if b, other := l.mayRelease("b", address), l.mayRelease("c", address); b != c.b || other != c.c {
			t.Errorf("%s: b may: %t, c may: %t", what, b, other)
		}
	}
	if !(&locations{}).mayRelease("c", address) {
		t.Error("nobody may give back an address that no node has told of")
	}
}
