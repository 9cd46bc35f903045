package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestListOfNodes: each change of the list is on the disk before it is reported, and a list that changes
// nothing is neither written nor reported.
func TestListOfNodes(t *testing.T) {
	m := newMembers(t, "a")[0]
	changes := 0
	nodes, err := openNodes(m.id, m.state, func() { changes++ })
	if err != nil {
		t.Fatal(err)
	}
	stored := func() (names []string) {
		t.Helper()
		list, err := identity.LoadNodes(m.state)
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range list {
			names = append(names, node.Name)
		}
		return names
	}
	b := identity.Node{Name: "b", Number: 2, Address: "192.0.2.2:7443"}
	nodes.Learn([]identity.Node{b})
	nodes.Learn([]identity.Node{b})
	if changes != 1 || !slices.Equal(stored(), []string{"a", "b"}) {
		t.Errorf("%d changes, stored %v", changes, stored())
	}
	if found, err := nodes.Find("b"); err != nil || found != b {
		t.Errorf("%+v, %v", found, err)
	}
	if name, known := nodes.ByNumber(2); !known || name != "b" {
		t.Errorf("node 2 is %q", name)
	}
	if _, err := nodes.Find("c"); !errors.Is(err, api.ErrRefused) {
		t.Errorf("an unknown node: %v", err)
	}
	if name, known := nodes.ByNumber(3); known {
		t.Errorf("node 3 is %q", name)
	}
	names, rest := nodes.remove(func(n identity.Node) bool { return n.Number == 2 })
	if !slices.Equal(names, []string{"b"}) || len(rest) != 1 || len(nodes.Others()) > 0 {
		t.Errorf("removed %v, left %v", names, rest)
	}
	nodes.keep(rest)
	if changes != 2 || !slices.Equal(stored(), []string{"a"}) {
		t.Errorf("%d changes, stored %v", changes, stored())
	}
}

// TestUnreadableListOfNodes: an agent does not start with a list that it cannot read.
func TestUnreadableListOfNodes(t *testing.T) {
	m := newMembers(t, "a")[0]
	if err := os.WriteFile(filepath.Join(m.state, "nodes.json"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openNodes(m.id, m.state, func() {}); err == nil {
		t.Error("the list was read")
	}
}
