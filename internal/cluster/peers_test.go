package cluster

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

// says passes a list of nodes to a member, and returns whether the member knows an entry then.
func (m *member) says(t *testing.T, from string, entry identity.Node) bool {
	t.Helper()
	document, err := json.Marshal([]identity.Node{entry})
	if err != nil {
		t.Fatal(err)
	}
	_ = m.hear(from, &api.HelloRequest{NodesJson: document}) // the member refuses an invalid list as a whole
	return slices.Contains(m.List(), entry)
}

// TestWhoMayChangeNodes: a faulty node must not redirect other nodes' containers. An entry's signer counts,
// not its sender.
func TestWhoMayChangeNodes(t *testing.T) {
	all := newMembers(t, "a", "b", "c", "d")
	stranger := newMembers(t, "a", "x", "y", "z", "e")[4]
	c := all[2]
	moved := func(entry identity.Node) identity.Node {
		entry.Address, entry.Revision = "192.0.2.66:7443", entry.Revision+1
		return entry
	}
	unsigned := func(name string, number int, revision uint64) identity.Node {
		return identity.Node{Name: name, Number: number, Address: "192.0.2.66:7443", Revision: revision}
	}
	for name, test := range map[string]struct {
		from string
		says identity.Node
		want bool
	}{
		"its own":                       {"d", all[3].entry, true},
		"another's, passed on":          {"d", all[1].entry, true},
		"another's, changed":            {"b", moved(all[3].entry), false},
		"its own, changed, not signed":  {"b", moved(all[1].entry), false},
		"the authority's, unsigned":     {"a", unsigned("b", 2, 9), false},
		"unknown, not signed":           {"b", unsigned("e", 9, 1), false},
		"unknown, the highest revision": {"b", unsigned("e", 9, 1<<64-1), false},
		"of another cluster":            {"b", stranger.entry, false},
		"its own, the highest revision": {"b", unsigned("b", 2, 1<<64-1), false},
		"another's number, not its name": {"b",
			identity.Node{Name: "b", Number: 4, Address: all[1].entry.Address, Revision: 5}, false},
	} {
		if got := c.says(t, test.from, test.says); got != test.want {
			t.Errorf("%s: believed %t, want %t", name, got, test.want)
		}
	}
}

// TestARemovedNodeIsForgotten: all nodes that hear of the removal forget the node, and no old list brings
// it back.
func TestARemovedNodeIsForgotten(t *testing.T) {
	all := newMembers(t, "a", "b", "c")
	a, b, c := all[0], all[1], all[2]
	if !c.says(t, "b", b.entry) {
		t.Fatal("c does not know b")
	}
	if _, err := a.id.RemoveNode(identity.Peer{Name: "b", Number: 2}); err != nil {
		t.Fatal(err)
	}
	hello, err := a.helloRequest("c")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.hear("a", hello); err != nil {
		t.Fatal(err)
	}
	if len(c.gone) != 1 || !errors.Is(c.id.CheckPeer(identity.Peer{Name: "b", Number: 2}),
		identity.ErrRevoked) {
		t.Errorf("c has not heard of it: %v", c.gone)
	}
	if c.says(t, "b", b.entry) {
		t.Error("its own entry brings it back")
	}
	if _, err := c.Find("b"); err == nil {
		t.Error("c knows it by name")
	}
	again := openMember(t, c.id, c.state)
	if _, err := again.Find("b"); err == nil {
		t.Error("c knows it by name after a restart")
	}
	forged := a.id.Revocations()
	forged[0].Number, forged[0].Name = 3, "c"
	document, err := json.Marshal(forged)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.hear("b", &api.HelloRequest{RevokedJson: document}); err == nil || len(a.gone) > 0 {
		t.Errorf("a removal that nobody has signed: %v, %v", err, a.gone)
	}
}

// TestHelloSaysWhatIsNewOnly: a list of hundreds of nodes is not sent every few seconds.
func TestHelloSaysWhatIsNewOnly(t *testing.T) {
	all := newMembers(t, "a", "b")
	a, b := all[0], all[1]
	a.known["b"], b.known["a"] = &peer{}, &peer{}
	exchange := func() (*api.HelloRequest, *api.HelloReply) {
		request, err := a.helloRequest("b")
		if err != nil {
			t.Fatal(err)
		}
		reply, err := b.Answer("a", request)
		if err != nil {
			t.Fatal(err)
		}
		a.noteMember("b", reply)
		if err := a.hear("b", reply); err != nil {
			t.Fatal(err)
		}
		return request, reply
	}
	exchange()
	exchange()
	request, reply := exchange()
	if len(request.NodesJson)+len(request.RevokedJson)+len(reply.NodesJson)+len(reply.RevokedJson) > 0 {
		t.Errorf("%d and %d bytes that the other knows", len(request.NodesJson), len(reply.NodesJson))
	}
	if _, err := a.id.RemoveNode(identity.Peer{Name: "z", Number: 9}); err != nil {
		t.Fatal(err)
	}
	if request, _ := exchange(); len(request.RevokedJson) == 0 || len(b.gone) != 1 {
		t.Errorf("b has not heard of a removal: %v", b.gone)
	}
}

// TestAnUnreadableListLosesNoNode: while this node does not know which nodes were removed, it trusts none,
// but keeps its list of them, and reaches them again once the list is repaired.
func TestAnUnreadableListLosesNoNode(t *testing.T) {
	all := newMembers(t, "a", "b", "c")
	c := all[2]
	if !c.says(t, "a", all[1].entry) {
		t.Fatal("c does not know b")
	}
	path := filepath.Join(c.state, "identity", "revoked.json")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := identity.Load(c.state)
	if err != nil {
		t.Fatal(err)
	}
	again := openMember(t, id, c.state)
	again.keepRevoked()
	if _, err := again.Find("b"); err != nil || again.unkept == "" {
		t.Errorf("b: %v; told of: %q", err, again.unkept)
	}
	if _, err := all[0].id.RemoveNode(identity.Peer{Name: "b", Number: 2}); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(all[0].state, "identity", "revoked.json"))
	if err == nil {
		err = os.WriteFile(path, list, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	again.keepRevoked()
	if _, err := again.Find("b"); err == nil || len(again.gone) != 1 || again.unkept != "" {
		t.Errorf("a removal in the repaired list: %v, %q", again.gone, again.unkept)
	}
}
