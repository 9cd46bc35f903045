package agent

import (
	"testing"

	"github.com/godwit/godwit/internal/wire/identity"
)

// TestWhoMayChangeNodes: a node that has gone wrong must not send the containers of others to where it likes.
func TestWhoMayChangeNodes(t *testing.T) {
	known := []identity.Node{
		{Name: "a", Number: 1, Address: "192.0.2.1:7443"}, {Name: "b", Number: 2, Address: "192.0.2.2:7443"},
		{Name: "c", Number: 3, Address: "192.0.2.3:7443"},
	}
	p := &peers{nodes: known}
	node := func(name string, number int) identity.Node {
		return identity.Node{Name: name, Number: number, Address: "192.0.2.66:7443", Revision: 9}
	}
	for name, test := range map[string]struct {
		from string
		says identity.Node
		want bool
	}{
		"of itself":                  {"b", node("b", 2), true},
		"of another":                 {"b", node("c", 3), false},
		"of the authority":           {"b", node("a", 1), false},
		"another's number, own name": {"b", node("b", 3), false},
		"another's name, new number": {"b", node("c", 9), false},
		"of one that is new":         {"b", node("d", 4), true},
		"the authority, of another":  {"a", node("c", 3), true},
		"the authority, a new name":  {"a", node("d", 3), true},
		"nobody":                     {"", node("c", 3), false},
	} {
		if got := len(p.believable(test.from, []identity.Node{test.says})) == 1; got != test.want {
			t.Errorf("%s: believed %t, want %t", name, got, test.want)
		}
	}
}
