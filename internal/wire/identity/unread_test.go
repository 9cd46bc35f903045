package identity

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnUnreadableListTrustsNobody checks that a damaged list of removed nodes is neither taken as empty
// nor a reason for the agent to end.
func TestAnUnreadableListTrustsNobody(t *testing.T) {
	c := newCluster(t)
	b, d := c.mustJoin(t, "b"), c.mustJoin(t, "d")
	one := removed(t, c, d)
	if _, err := b.Revoke([]Revocation{one}); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(revocationsPath(b.dir))
	if err != nil {
		t.Fatal(err)
	}
	forged := strings.Replace(string(good), `"version": 1`, `"version": 2`, 1)
	for what, damage := range map[string]string{"cut": string(good[:20]), "empty": "", "forged": forged} {
		if err := os.WriteFile(revocationsPath(b.dir), []byte(damage), privateFile); err != nil {
			t.Fatal(err)
		}
		again, err := Load(filepath.Dir(b.dir))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for _, peer := range []Peer{{Name: "a", Number: 1}, {Name: "d", Number: 3}} {
			err := again.CheckPeer(peer)
			if !errors.Is(err, ErrRevocationsUnread) || !strings.Contains(err.Error(), "from another node") {
				t.Errorf("%s: %s: %v", what, peer, err)
			}
		}
		if _, err := again.Attend(chainOf(t, c.first), &closing{}); !errors.Is(err, ErrRevocationsUnread) {
			t.Errorf("%s: a connection: %v", what, err)
		}
		if _, err := again.KeepRevocations(); !errors.Is(err, ErrRevocationsUnread) {
			t.Errorf("%s: %v", what, err)
		}
		if left, err := os.ReadFile(revocationsPath(b.dir)); err != nil || string(left) != damage {
			t.Errorf("%s: what is left of the list was overwritten: %q, %v", what, left, err)
		}
		if err := os.WriteFile(revocationsPath(b.dir), good, privateFile); err != nil {
			t.Fatal(err)
		}
		if fresh, err := again.KeepRevocations(); err != nil || len(fresh) != 1 {
			t.Errorf("%s, repaired: %v, %v", what, fresh, err)
		}
		if err := again.CheckPeer(Peer{Name: "a", Number: 1}); err != nil {
			t.Errorf("%s, repaired: %v", what, err)
		}
	}
}

// TestAnAuthorityAdmitsNobodyWithoutTheList checks that an authority without the list issues no
// certificates: it could renew that of a removed node.
func TestAnAuthorityAdmitsNobodyWithoutTheList(t *testing.T) {
	c := newCluster(t)
	removed(t, c, c.mustJoin(t, "b"))
	if err := os.WriteFile(revocationsPath(c.first.dir), []byte("x"), privateFile); err != nil {
		t.Fatal(err)
	}
	again, err := Load(filepath.Dir(c.first.dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Authority(); !errors.Is(err, ErrRevocationsUnread) {
		t.Errorf("the authority: %v", err)
	}
	if _, err := NewServer(again, nil, nil); err != nil {
		t.Errorf("its server: %v", err)
	}
	if _, err := again.RemoveNode(Peer{Name: "d", Number: 3}); !errors.Is(err, ErrRevocationsUnread) {
		t.Errorf("a removal: %v", err)
	}
}

// TestAListThatWasNotWrittenIsWrittenLater checks that a removal survives an agent that heard of it while
// its disk was full.
func TestAListThatWasNotWrittenIsWrittenLater(t *testing.T) {
	c := newCluster(t)
	b, d := c.mustJoin(t, "b"), c.mustJoin(t, "d")
	one := removed(t, c, d)
	path := revocationsPath(b.dir)
	block := func() error {
		return errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "full"), privateDir))
	}
	if err := block(); err != nil { // a rename cannot replace a directory that is not empty
		t.Fatal(err)
	}
	if fresh, err := b.Revoke([]Revocation{one}); err == nil || len(fresh) != 1 {
		t.Fatalf("%v, %v", fresh, err)
	}
	if _, err := b.KeepRevocations(); err == nil {
		t.Error("nothing says that it cannot be written")
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if _, err := b.KeepRevocations(); err != nil {
		t.Fatal(err)
	}
	again, err := Load(filepath.Dir(b.dir))
	if err != nil || !errors.Is(again.CheckPeer(Peer{Name: "d", Number: 3}), ErrRevoked) {
		t.Errorf("after a restart: %v", err)
	}
}
