package identity

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func promoted(t *testing.T, c *cluster, id *Identity) []byte {
	t.Helper()
	handover, err := c.first.HandOver(Peer{Name: id.Node.Name, Number: id.Node.Number})
	if err != nil {
		t.Fatal(err)
	}
	if err := id.TakeAuthority(handover); err != nil {
		t.Fatal(err)
	}
	return handover
}

// TestNoNodeIsNeededForGood checks that a promoted node admits, renews and removes, and assigns no number
// that another authority assigns.
func TestNoNodeIsNeededForGood(t *testing.T) {
	c := newCluster(t)
	b, d := c.mustJoin(t, "b"), c.mustJoin(t, "d")
	first := promoted(t, c, b)
	if again := promoted(t, c, b); !bytes.Equal(first, again) {
		t.Error("the second handover is another")
	}
	info, err := os.Stat(filepath.Join(b.dir, "ca", "ca.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info.Mode(), err)
	}
	server, err := NewServer(b, func() []Node { return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	second := &cluster{first: b, authority: authorityOf(t, b)}
	second.address, second.served = serve(t, server, b, b.Certificate())
	e := second.mustJoin(t, "e")
	f := c.mustJoin(t, "f")
	if e.Node.Number == f.Node.Number || e.Fingerprint() != f.Fingerprint() {
		t.Errorf("joined at two authorities as %+v and %+v", e.Node, f.Node)
	}
	if _, err := second.join(t, second.token(t, ""), "d"); !errors.Is(err, ErrNameTaken) {
		t.Errorf("a name that is taken: %v", err)
	}
	if _, err := b.Renew(testContext(t), nil); err != nil {
		t.Errorf("renewal: %v", err)
	}
	one, err := b.RemoveNode(Peer{Name: "a", Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	if fresh, err := d.Revoke([]Revocation{one}); err != nil || len(fresh) != 1 {
		t.Errorf("the first node is removed: %v, %v", fresh, err)
	}
}

func TestDemotion(t *testing.T) {
	c, stranger := newCluster(t), newCluster(t)
	b := c.mustJoin(t, "b")
	stranger.mustJoin(t, "b")
	peer := Peer{Name: "b", Number: 2}
	promoted(t, c, b)
	foreign, err := stranger.first.OrderDemotion(peer)
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.first.OrderDemotion(Peer{Name: "c", Number: 3})
	if err != nil {
		t.Fatal(err)
	}
	for what, order := range map[string][]byte{"another cluster's": foreign, "for another node": other,
		"garbage": {'{'}} {
		if _, err := b.DropAuthority(order); err == nil || !b.HasAuthority() {
			t.Errorf("%s: obeyed, %v", what, err)
		}
	}
	order, err := c.first.OrderDemotion(peer)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := b.DropAuthority(order)
	if err != nil || b.HasAuthority() {
		t.Fatalf("%v, the key is there: %t", err, b.HasAuthority())
	}
	if err := c.first.TakeNumbersBack(peer, rest); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	err = c.authority.change(func(s *authorityState) error {
		for i := range MaxNumber - 2 {
			given, err := s.place("n"+string(rune('a'+i%26))+string(rune('a'+i/26)), false)
			if err != nil || seen[given.Number] || given.Number <= 2 {
				t.Fatalf("number %d of %d: %+v, %v", i, MaxNumber, given, err)
			}
			seen[given.Number] = true
		}
		_, err := s.place("more", false)
		return err
	})
	if !errors.Is(err, ErrClusterFull) {
		t.Errorf("after all numbers: %v", err)
	}
}

func TestOnlyTheClustersAuthorityIsTaken(t *testing.T) {
	c, stranger := newCluster(t), newCluster(t)
	b := c.mustJoin(t, "b")
	foreign, err := stranger.first.HandOver(Peer{Name: "b", Number: 2})
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string][]byte{"another cluster's": foreign, "garbage": {'{'},
		"nothing": []byte("{}")} {
		if err := b.TakeAuthority(data); err == nil || b.HasAuthority() {
			t.Errorf("%s was taken", what)
		}
	}
}

func FuzzHandover(f *testing.F) {
	c := newCluster(f)
	b := c.mustJoin(f, "b")
	good, err := c.first.HandOver(Peer{Name: "b", Number: 2})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"pair":"","span":{"last":1,"end":999}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		handover, err := parseHandover(data, b.Fingerprint())
		if err == nil && (!handover.Span.valid() || len(handover.Nodes) > MaxNumber) {
			t.Fatalf("taken: %+v", handover.Span)
		}
		if _, err := b.DropAuthority(data); err == nil {
			t.Fatal("an order that nobody has signed was obeyed")
		}
	})
}
