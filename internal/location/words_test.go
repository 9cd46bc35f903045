package location

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/network"
)

// word is what a node says of a container on a bridge.
type word struct {
	node    string
	lists   bool
	unasked bool // the node to which its packets go cannot be reached
}

func many(count int, one word) []word { return slices.Repeat([]word{one}, count) }

// TestWhoHasContainer: no node gets what comes for a container on a bridge by saying that it has
// it, as long as the node says so to which it goes.
func TestWhoHasContainer(t *testing.T) {
	b, notB, c := word{node: "b", lists: true}, word{node: "b"}, word{node: "c", lists: true}
	alone := word{node: "c", lists: true, unasked: true}
	for name, test := range map[string]struct {
		via   string
		words []word
		want  verdict // of the last one
	}{
		"who has it":                        {"b", []word{b}, asBefore},
		"another one":                       {"b", []word{c}, asBefore},
		"another one, again and again":      {"b", many(100, c), asBefore},
		"another one, which does not":       {"b", many(100, word{node: "c"}), asBefore},
		"another one, it has left":          {"b", []word{b, notB, c}, isThere},
		"another one, it was left out once": {"b", []word{notB, b, c}, asBefore},
		"it is no more":                     {"b", many(missesAllowed, notB), isNoMore},
		"it is there still, perhaps":        {"b", many(missesAllowed-1, notB), asBefore},
		"it is there":                       {"b", append(many(missesAllowed-1, notB), b, notB), asBefore},
		"a link is lost for a moment":       {"b", append(many(missesAllowed-1, alone), c, alone), asBefore},
		"a node is lost":                    {"b", many(missesAllowed, alone), isThere},
		"nobody had it":                     {"", []word{c}, isThere},
	} {
		l, got := New(t.Context(), Config{}), asBefore
		place := network.BridgedPlace{Container: "one", Address: netip.MustParseAddr("172.30.0.2"),
			Via: test.via}
		for _, said := range test.words {
			got = l.weigh(place, said.node, said.lists, !said.unasked)
		}
		if got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
