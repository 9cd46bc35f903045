package identity

import (
	"crypto/x509"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// closing counts how often a connection is closed.
type closing struct{ times int }

func (c *closing) Close() error { c.times++; return nil }

// chainOf is what a node shows in a handshake.
func chainOf(t *testing.T, id *Identity) []*x509.Certificate {
	t.Helper()
	var chain []*x509.Certificate
	for _, raw := range id.Certificate().Certificate {
		one, err := x509.ParseCertificate(raw)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, one)
	}
	return chain
}

func removed(t *testing.T, c *cluster, id *Identity) Revocation {
	t.Helper()
	one, err := c.first.RemoveNode(Peer{Name: id.Node.Name, Number: id.Node.Number})
	if err != nil {
		t.Fatal(err)
	}
	return one
}

func TestARemovedNodeIsOutForGood(t *testing.T) {
	c := newCluster(t)
	b, d := c.mustJoin(t, "b"), c.mustJoin(t, "d")
	spare := c.token(t, "b")
	peer, shown := Peer{Name: "b", Number: 2}, chainOf(t, b)
	conn, other, left := &closing{}, &closing{}, &closing{}
	for _, attend := range []struct {
		shown []*x509.Certificate
		conn  *closing
	}{{shown, conn}, {chainOf(t, d), other}, {shown, left}} {
		leave, err := d.Attend(attend.shown, attend.conn)
		if err != nil {
			t.Fatal(err)
		}
		if attend.conn == left {
			leave()
		}
	}
	one := removed(t, c, b)
	if fresh, err := d.Revoke([]Revocation{one}); err != nil || len(fresh) != 1 {
		t.Fatalf("%v, %v", fresh, err)
	}
	if fresh, err := d.Revoke([]Revocation{one}); err != nil || len(fresh) != 0 {
		t.Errorf("the second time: %v, %v", fresh, err)
	}
	if conn.times != 1 || other.times != 0 || left.times != 0 {
		t.Errorf("closed: %d of its own, %d of another node, %d that had ended", conn.times, other.times,
			left.times)
	}
	if _, err := d.Attend(shown, conn); !errors.Is(err, ErrRevoked) {
		t.Errorf("a connection after it: %v", err)
	}
	again, err := Load(filepath.Dir(d.dir))
	if err != nil || !errors.Is(again.CheckPeer(peer), ErrRevoked) || again.RevocationVersion() != 1 {
		t.Errorf("after a restart: %v, version %d", err, again.RevocationVersion())
	}
	if _, err := b.Renew(testContext(t), dialRenew(t, c, b)); !errors.Is(err, ErrRevoked) {
		t.Errorf("it renews: %v", err)
	}
	if _, err := c.join(t, spare, "b"); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("a token that was for it: %v", err)
	}
	c.joined = slices.DeleteFunc(c.joined, func(n Node) bool { return n.Number == 2 })
	successor := c.mustJoin(t, "b")
	if successor.Node.Number != 4 || !errors.Is(successor.CheckPeer(peer), ErrRevoked) {
		t.Errorf("the next node of its name: %+v, %v", successor.Node, successor.Revocations())
	}
}

// TestRevocationsAreTheAuthoritysAlone checks that a node cannot remove another.
func TestRevocationsAreTheAuthoritysAlone(t *testing.T) {
	c, stranger := newCluster(t), newCluster(t)
	b := c.mustJoin(t, "b")
	stranger.mustJoin(t, "b")
	foreign, err := stranger.first.RemoveNode(Peer{Name: "b", Number: 2})
	if err != nil {
		t.Fatal(err)
	}
	good := removed(t, c, b)
	for what, one := range map[string]Revocation{
		"another cluster's": foreign,
		"another number": {Number: 1, Name: good.Name, Version: good.Version, Time: good.Time,
			Signature: good.Signature},
		"another name": {Number: 2, Name: "a", Version: good.Version, Time: good.Time,
			Signature: good.Signature},
		"another version": {Number: 2, Name: "b", Version: 9, Time: good.Time, Signature: good.Signature},
		"another time": {Number: 2, Name: "b", Version: 1, Time: good.Time.Add(time.Hour),
			Signature: good.Signature},
		"none": {Number: 2, Name: "b", Version: 1, Time: good.Time},
	} {
		if fresh, err := b.Revoke([]Revocation{one}); err == nil || len(fresh) > 0 {
			t.Errorf("%s was taken", what)
		}
	}
	if _, err := b.RemoveNode(Peer{Name: "a", Number: 1}); !errors.Is(err, ErrNotAuthority) {
		t.Errorf("a node without the authority removes another: %v", err)
	}
	if len(b.Revocations()) > 0 {
		t.Errorf("%v", b.Revocations())
	}
}

func TestVersionsGrow(t *testing.T) {
	c := newCluster(t)
	for i, name := range []string{"b", "d", "e"} {
		if one := removed(t, c, c.mustJoin(t, name)); one.Version != uint64(i+1) {
			t.Errorf("removal %d has version %d", i+1, one.Version)
		}
		c.joined = nil
	}
}

func TestEntriesAreSigned(t *testing.T) {
	c := newCluster(t)
	b, d := c.mustJoin(t, "b"), c.mustJoin(t, "d")
	entry, err := b.Entry()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.VerifyNode(entry); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	foreign, err := initNode(t, "b").Entry()
	if err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(*Node){
		"address":         func(n *Node) { n.Address = "192.0.2.66:7443" },
		"revision":        func(n *Node) { n.Revision++ },
		"number":          func(n *Node) { n.Number = 3 },
		"name":            func(n *Node) { n.Name = "d" },
		"no signature":    func(n *Node) { n.Signature, n.Certificate = "", "" },
		"no certificate":  func(n *Node) { n.Certificate = "" },
		"another cluster": func(n *Node) { *n = foreign },
		"greatest":        func(n *Node) { n.Revision = 1<<64 - 1 },
	} {
		bad := entry
		spoil(&bad)
		if d.VerifyNode(bad) == nil {
			t.Errorf("%s: taken", what)
		}
	}
	if _, err := d.Revoke([]Revocation{removed(t, c, b)}); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(d.VerifyNode(entry), ErrRevoked) {
		t.Error("the entry of a node that was removed is taken")
	}
}

// TestTheSuccessorsEntryWins checks that an older signature cannot outbid a node that got the number again
// after a disk was lost.
func TestTheSuccessorsEntryWins(t *testing.T) {
	c := newCluster(t)
	b := c.mustJoin(t, "b")
	b.Node.Revision = MaxRevision
	old, err := b.Entry()
	if err != nil {
		t.Fatal(err)
	}
	c.joined = []Node{old}
	now := time.Now().Add(time.Minute)
	c.authority.now = func() time.Time { return now }
	again, err := c.join(t, c.token(t, "b"), "b")
	if err != nil || again.Node.Revision == 0 || again.Node.Revision > MaxRevision {
		t.Fatalf("%+v, %v", again, err)
	}
	entry, err := again.Entry()
	if err != nil {
		t.Fatal(err)
	}
	if merged, changed := Merge([]Node{old}, []Node{entry}); !changed || merged[0] != entry {
		t.Errorf("the old entry stays: %+v", merged)
	}
	if merged, changed := Merge([]Node{entry}, []Node{old}); changed || merged[0] != entry {
		t.Errorf("the old entry is back: %+v", merged)
	}
}

// TestNextRevisionIsNeverZero checks that a revision of 2^64-1 does not make the next one 0, which no node
// would accept.
func TestNextRevisionIsNeverZero(t *testing.T) {
	known := []Node{{Name: "b", Number: 2, Address: "h:1", Revision: 1<<64 - 1}}
	server := &Server{nodes: func() []Node { return known }}
	if got := server.nextRevision(2); got == 0 || got > MaxRevision {
		t.Errorf("got %d", got)
	}
	if _,
		err := ParseNodes(
		[]byte(`[{"name":"b","number":2,"address":"h:1","revision":18446744073709551615}]`)); err == nil {
		t.Error("such an entry is taken from other nodes")
	}
}
