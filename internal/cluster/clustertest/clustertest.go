// Package clustertest makes clusters for tests: nodes with identities that are real, and no agents.
package clustertest

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Node is a node of a cluster.
type Node struct {
	ID    *identity.Identity
	State string // its state directory
}

// New makes a cluster whose first node has admitted the others, and knows them.
func New(t *testing.T, names ...string) []Node {
	t.Helper()
	state := t.TempDir()
	first, _, err := identity.Init(identity.InitOptions{
		State: state, Name: names[0], Address: "127.0.0.1", Pool: netip.MustParsePrefix("10.88.0.0/16"),
	})
	if err != nil {
		t.Fatal(err)
	}
	known := admitted{}
	known.add(entryOf(t, first))
	server, err := identity.NewServer(first, known.list, known.add)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := wire.Listen(t.Context(), "127.0.0.1:0",
		wire.ListenOptions{Identity: first, Server: server})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	all := []Node{{first, state}}
	for _, name := range names[1:] {
		all = append(all, join(t, first, listener.Addr().String(), name))
	}
	if err := identity.SaveNodes(state, known.list()); err != nil {
		t.Fatal(err)
	}
	return all
}

func entryOf(t *testing.T, id *identity.Identity) identity.Node {
	t.Helper()
	entry, err := id.Entry()
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

func join(t *testing.T, first *identity.Identity, server, name string) Node {
	t.Helper()
	authority, err := first.Authority()
	if err != nil {
		t.Fatal(err)
	}
	token, err := authority.IssueToken(0, "")
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	id, _, err := identity.Join(t.Context(), identity.JoinOptions{
		State: state, Server: server, Token: token.String(), Name: name, Address: name + ".example",
	})
	if err != nil {
		t.Fatal(err)
	}
	return Node{id, state}
}

// admitted are the nodes that the first node knows.
type admitted struct {
	mu    sync.Mutex
	nodes []identity.Node
}

func (a *admitted) list() []identity.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.nodes)
}

func (a *admitted) add(node identity.Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nodes, _ = identity.Merge(a.nodes, []identity.Node{node})
}
