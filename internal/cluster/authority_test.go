package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestWhoMayBeRemoved: a harmful removal has to be forced, and the message names the harm.
func TestWhoMayBeRemoved(t *testing.T) {
	all := newMembers(t, "a", "b", "c")
	a, b := all[0], all[1]
	moves := []migration.Spec{{ID: "0123", Name: "web", Source: "a", Target: "c"}}
	members := NewMembers(a.Peers, func() []migration.Spec { return moves })
	a.known["b"] = &peer{report: report{authority: true}}
	for _, one := range []struct{ what, node, want string }{
		{"itself", "a", "a node does not remove itself"},
		{"one with the key", "b", "b has the key of the authority"},
		{"one that a container moves to", "c", "migration 0123 of container web"},
		{"unknown", "d", "no such node"},
	} {
		_, err := members.RemoveNode(t.Context(), one.node, false)
		if !errors.Is(err, api.ErrRefused) || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s: %v", one.what, err)
		}
	}
	for _, by := range []*member{b, all[2]} {
		if _, err := membersOf(by).RemoveNode(t.Context(), "a", true); !errors.Is(err, api.ErrRefused) {
			t.Errorf("%s removes a node without the key: %v", by.entry.Name, err)
		}
	}
	if len(a.gone)+len(b.gone) > 0 {
		t.Errorf("removed: %v, %v", a.gone, b.gone)
	}
	reply, err := members.RemoveNode(t.Context(), "c", true)
	if err != nil || len(a.gone) != 1 || a.gone[0].Name != "c" || len(reply.Untold) != 1 {
		t.Errorf("by force: %+v, %v, %v", reply, a.gone, err)
	}
	if _, err := members.RemoveNode(t.Context(), "c", false); err != nil {
		t.Errorf("again, to have the others told: %v", err)
	}
	if !errors.Is(a.id.CheckPeer(identity.Peer{Name: "c", Number: 3}), identity.ErrRevoked) {
		t.Error("c is trusted on")
	}
}

// TestPromoteAndDemote: a node that accepts the key gets it, and nothing changes for a node that does not.
func TestPromoteAndDemote(t *testing.T) {
	all := newMembers(t, "a", "b")
	a, b := all[0], all[1]
	server, cut := link(t, a, b)
	members := membersOf(a)
	if err := membersOf(b).PromoteNode(t.Context(), "a"); !errors.Is(err, api.ErrRefused) {
		t.Errorf("without the key: %v", err)
	}
	if err := members.PromoteNode(t.Context(), "b"); err != nil || !server.took || !b.id.HasAuthority() {
		t.Fatalf("%v; it took the key: %t", err, server.took)
	}
	if !a.signs("b") {
		t.Error("a does not know that b has the key")
	}
	if err := members.DemoteNode(t.Context(), "a"); !errors.Is(err, api.ErrRefused) {
		t.Errorf("a demotes itself: %v", err)
	}
	if err := members.DemoteNode(t.Context(), "b"); err == nil ||
		!strings.Contains(err.Error(), "b did not give up the authority") {
		t.Errorf("a node that does not know the call: %v", err)
	}
	cut()
	if err := members.DemoteNode(t.Context(), "b"); err == nil {
		t.Error("a node that cannot be reached was demoted")
	}
}

// TestRenewalFails: if no node signs, or the signing node cannot be reached, the certificate stays and the
// error says why.
func TestRenewalFails(t *testing.T) {
	all := newMembers(t, "a", "b")
	b := all[1]
	b.forget(func(n identity.Node) bool { return n.Name == "a" })
	before := b.id.Expires()
	if err := membersOf(b).renewNow(t.Context()); !errors.Is(err, errNoAuthority) {
		t.Errorf("with no node that signs: %v", err)
	}
	b.Learn([]identity.Node{{Name: "a", Number: firstNumber, Address: "127.0.0.1:1"}})
	if err := membersOf(b).renewNow(t.Context()); err == nil || errors.Is(err, errNoAuthority) {
		t.Errorf("with one that cannot be reached: %v", err)
	}
	if pause := membersOf(b).tryRenewal(t.Context(), renewEvery); pause != renewEvery {
		t.Errorf("it is tried again after %s", pause)
	}
	if b.id.Expires() != before {
		t.Error("the certificate is another one")
	}
}
