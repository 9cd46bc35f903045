package identity

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// trusts reports whether a node accepts another one's certificates in a handshake.
func trusts(t *testing.T, id, peer *Identity) bool {
	t.Helper()
	_, err := id.VerifyPeer(chainOf(t, peer), x509.VerifyOptions{DNSName: ServerName(peer.Node.Name)})
	return err == nil
}

func wantTrust(t *testing.T, what string, id, peer *Identity, want bool) {
	t.Helper()
	if got := trusts(t, id, peer); got != want {
		t.Errorf("%s: %s trusts %s: %t, want %t", what, id.Node.Name, peer.Node.Name, got, want)
	}
}

// restarted returns a node after a restart of its agent.
func restarted(t *testing.T, id *Identity) *Identity {
	t.Helper()
	again, err := Load(filepath.Dir(id.dir))
	if err != nil {
		t.Fatal(err)
	}
	if again.Fingerprint() != id.Fingerprint() || again.HasAuthority() != id.HasAuthority() ||
		again.Current() != id.Current() || (again.trust.Load().next == nil) != (id.trust.Load().next == nil) {
		t.Errorf("node %s has forgotten how far the rollover is", id.Node.Name)
	}
	return again
}

// hears passes one node's news to another in the form in which they travel.
func hears(t *testing.T, id, from *Identity) (retired bool) {
	t.Helper()
	s, _ := from.Succession()
	document, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	heard, err := ParseSuccession(document)
	if err != nil {
		t.Fatal(err)
	}
	retired, err = id.Follow(heard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := id.Revoke(from.SignedRevocations()); err != nil {
		t.Error(err)
	}
	return retired
}

// renews makes a node renew its certificate at another node.
func renews(t *testing.T, id, at *Identity) {
	t.Helper()
	if at == id {
		if _, err := id.Renew(testContext(t), nil); err != nil {
			t.Fatal(err)
		}
		return
	}
	server, err := NewServer(at, func() []Node { return []Node{at.Node} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	near, far := pipe(t)
	done := make(chan error, 1)
	go func() { done <- server.ServeRenew(far, Peer{Name: id.Node.Name, Number: id.Node.Number}) }()
	if _, err := id.Renew(testContext(t), near); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func begins(t *testing.T, id *Identity, force bool) {
	t.Helper()
	if err := id.BeginRollover(time.Hour, false, force); err != nil {
		t.Fatal(err)
	}
}

// TestRolloverWithoutDowntime checks that at each step all nodes trust each other, including those that
// have not heard of it.
func TestRolloverWithoutDowntime(t *testing.T) {
	c := newCluster(t)
	a, b, d := c.first, c.mustJoin(t, "b"), c.mustJoin(t, "d")
	all := func(what string) {
		t.Helper()
		a, b, d = restarted(t, a), restarted(t, b), restarted(t, d)
		for _, id := range []*Identity{a, b, d} {
			for _, peer := range []*Identity{a, b, d} {
				wantTrust(t, what, id, peer, true)
			}
		}
	}
	before := a.Fingerprint()
	begins(t, a, false)
	if a.Fingerprint() == before || !a.HasAuthority() || !a.NeedsRenewal(time.Now()) {
		t.Error("there is no new authority")
	}
	all("begun")
	renews(t, a, a)
	all("a has renewed, nobody has heard")
	hears(t, b, a)
	all("b has heard")
	renews(t, b, a)
	if b.NeedsRenewal(time.Now()) {
		t.Error("b has not come along")
	}
	all("b has renewed")
	renews(t, d, a) // which informs d of the rollover
	all("d has renewed")
	entry, err := d.Entry()
	if err != nil || a.VerifyNode(entry) != nil || !b.CameAlong(entry) {
		t.Errorf("the entry of d: %v", err)
	}
	if err := a.BeginRollover(time.Hour, false, false); !errors.Is(err, ErrRolloverUnderWay) {
		t.Errorf("a second one: %v", err)
	}
	if err := a.FinishRollover(false); err != nil {
		t.Fatal(err)
	}
	all("ended, nobody has heard")
	if !hears(t, b, a) || !hears(t, d, b) || hears(t, d, b) {
		t.Error("the end is not told once")
	}
	all("ended")
	if err := a.FinishRollover(false); !errors.Is(err, ErrNoRollover) {
		t.Errorf("a second end: %v", err)
	}
	begins(t, a, false)
	renews(t, b, a)
	all("the next one")
}

// TestWhoDidNotComeAlongIsOut uses the certificate, the key and the signatures of the old authority.
func TestWhoDidNotComeAlongIsOut(t *testing.T) {
	c := newCluster(t)
	a, b, d, e := c.first, c.mustJoin(t, "b"), c.mustJoin(t, "d"), c.mustJoin(t, "e")
	old := authorityOf(t, a)
	begins(t, a, false)
	renews(t, a, a)
	renews(t, b, a)
	oldConn, newConn := &closing{}, &closing{}
	for conn, id := range map[*closing]*Identity{oldConn: d, newConn: a} {
		if _, err := b.Attend(chainOf(t, id), conn); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.FinishRollover(true); err != nil {
		t.Fatal(err)
	}
	if !hears(t, b, a) {
		t.Error("b has not heard of the end")
	}
	b.CutConnections(func(p Peer) bool { return p.Name == "d" })
	if oldConn.times > 0 {
		t.Error("a connection to be kept was cut")
	}
	b.CutConnections(func(Peer) bool { return false })
	if oldConn.times != 1 || newConn.times != 0 {
		t.Errorf("closed: %d of the old authority, %d of the new one", oldConn.times, newConn.times)
	}
	wantTrust(t, "ended", b, d, false)
	if _, err := b.Attend(chainOf(t, d), oldConn); err == nil {
		t.Error("a connection that was made before the end is taken after it")
	}
	entry, err := d.Entry()
	if err != nil || b.VerifyNode(entry) == nil {
		t.Errorf("an entry under the old authority is taken: %v", err)
	}
	stolen, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	thief, err := newSuccessor(old.certificate, old.key, stolen.Public(), 99, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	retired, err := b.Follow(Succession{Next: thief.Raw})
	if err != nil || retired || b.trust.Load().next != nil {
		t.Error("the stolen key of the old authority begins another rollover")
	}
	removal, err := signRevocation(old.key, Revocation{Number: 1, Name: "a", Version: 9, Time: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if fresh, err := b.Revoke([]Revocation{removal}); err == nil || len(fresh) > 0 {
		t.Error("the stolen key of the old authority removes a node")
	}
	hears(t, e, a) // e may hear from any node: it has not renewed
	e = restarted(t, e)
	wantTrust(t, "e, which did not come along", e, d, false)
	c.authority = authorityOf(t, a)
	c.address, c.served = serve(t, &Server{
		identity: a, authority: a.Authority, nodes: func() []Node { return nil },
	}, a, a.Certificate())
	again, err := c.join(t, c.token(t, "d"), "d")
	if err != nil || again.Node.Number != d.Node.Number {
		t.Fatalf("d joins again: %v", err)
	}
	wantTrust(t, "joined again", b, again, true)
	wantTrust(t, "joined again", again, b, true)
}

// TestTwoRolloversAtOnce begins a rollover at two nodes with the authority at the same time, and checks
// that all nodes choose the same, and that no node is locked out.
func TestTwoRolloversAtOnce(t *testing.T) {
	c := newCluster(t)
	a, b, d, e := c.first, c.mustJoin(t, "b"), c.mustJoin(t, "d"), c.mustJoin(t, "e")
	promote(t, a, b)
	begins(t, a, false)
	begins(t, b, false)
	for _, id := range []*Identity{a, b} {
		renews(t, id, id)
	}
	renews(t, d, a)
	renews(t, e, b)
	for _, id := range []*Identity{a, b, d, e} {
		for _, peer := range []*Identity{a, b, d, e} {
			wantTrust(t, "both begun", id, peer, true)
		}
	}
	for _, pair := range [][2]*Identity{{a, b}, {b, a}, {d, e}, {e, d}} {
		hears(t, pair[0], pair[1])
	}
	winner, loser := a, b
	if b.HasAuthority() {
		winner, loser = b, a
	}
	for _, id := range []*Identity{a, b, d, e} {
		if id.Fingerprint() != winner.Fingerprint() {
			t.Errorf("node %s follows the one that lost", id.Node.Name)
		}
	}
	if loser.HasAuthority() {
		t.Fatal("the one that lost can sign")
	}
	if _, err := loser.Authority(); !errors.Is(err, ErrNotAuthority) {
		t.Errorf("the authority of the one that lost: %v", err)
	}
	loser = restarted(t, loser)
	for _, id := range []*Identity{loser, restarted(t, d), restarted(t, e)} {
		renews(t, id, winner)
	}
	promote(t, winner, loser)
	if err := winner.FinishRollover(false); err != nil {
		t.Fatal(err)
	}
	hears(t, loser, winner)
	if !restarted(t, loser).HasAuthority() {
		t.Error("promoted again, it cannot sign")
	}
}

func promote(t *testing.T, from, to *Identity) {
	t.Helper()
	handover, err := from.HandOver(Peer{Name: to.Node.Name, Number: to.Node.Number})
	if err == nil {
		err = to.TakeAuthority(handover)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestALostRolloverIsReplaced loses the node with the new key before any other node has it.
func TestALostRolloverIsReplaced(t *testing.T) {
	c := newCluster(t)
	a, b, d := c.first, c.mustJoin(t, "b"), c.mustJoin(t, "d")
	promote(t, a, b)
	begins(t, a, false)
	renews(t, a, a)
	renews(t, d, a)
	hears(t, b, a)
	if err := b.BeginRollover(time.Hour, false, false); !errors.Is(err, ErrRolloverUnderWay) {
		t.Fatalf("without force: %v", err)
	}
	begins(t, b, true)
	wantTrust(t, "d is still of the lost one", b, d, true)
	hears(t, d, b)
	hears(t, a, b)
	renews(t, b, b)
	renews(t, d, b)
	if a.HasAuthority() || a.Fingerprint() != b.Fingerprint() || !d.Current() {
		t.Error("the rollover that was forced does not win")
	}
}

// TestASupersededRolloverDoesNotEnd covers a node whose rollover was superseded, and which ends its own
// before it hears of that. Nodes that follow the other rollover stay with it, and nodes that know only the
// losing rollover still hear of the other.
func TestASupersededRolloverDoesNotEnd(t *testing.T) {
	c := newCluster(t)
	a, b, d, e := c.first, c.mustJoin(t, "b"), c.mustJoin(t, "d"), c.mustJoin(t, "e")
	promote(t, a, b)
	begins(t, a, false)
	renews(t, a, a)
	for _, id := range []*Identity{b, d, e} {
		hears(t, id, a)
	}
	begins(t, b, true)
	renews(t, b, b)
	hears(t, d, b)
	if err := a.FinishRollover(false); err != nil {
		t.Fatal(err)
	}
	if hears(t, d, a) || hears(t, b, a) {
		t.Error("the end of the rollover that lost was taken")
	}
	d = restarted(t, d)
	wantTrust(t, "a has ended its own", d, b, true)
	renews(t, d, b)
	if err := b.FinishRollover(false); err != nil {
		t.Fatal(err)
	}
	if !hears(t, d, b) || !hears(t, e, b) || e.Fingerprint() != b.Fingerprint() {
		t.Error("the end of the rollover that won was not taken")
	}
	wantTrust(t, "both ended", d, b, true)
	wantTrust(t, "both ended", d, a, false)
}

// TestAPlanIsForOneRollover checks that the deadline of a superseded rollover does not end the other one,
// although its node has the key of the other one, too.
func TestAPlanIsForOneRollover(t *testing.T) {
	c := newCluster(t)
	a, b := c.first, c.mustJoin(t, "b")
	promote(t, a, b)
	begins(t, a, false)
	if a.RolloverStatus().Ends.IsZero() {
		t.Error("a does not know when its own rollover ends")
	}
	hears(t, b, a)
	begins(t, b, true)
	hears(t, a, b)
	promote(t, b, a)
	if s := a.RolloverStatus(); !a.HasAuthority() || !s.UnderWay || !s.Ends.IsZero() {
		t.Errorf("a has the time of its own rollover for that of b: %+v", s)
	}
}

// TestNoRolloverAfterTheLastVersion uses the last version, which anybody with the key can do. The next
// rollover fails, and does not cost this node its key.
func TestNoRolloverAfterTheLastVersion(t *testing.T) {
	a := initNode(t, "a")
	old := authorityOf(t, a)
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	last, err := newSuccessor(old.certificate, old.key, key.Public(), maxTrustVersion, time.Now())
	if err == nil {
		_, err = a.Follow(Succession{Next: last.Raw})
	}
	if err != nil || a.HasAuthority() {
		t.Fatalf("the last version was not taken: %v", err)
	}
	if err := a.BeginRollover(time.Hour, false, true); err == nil {
		t.Error("a rollover after the last version has begun")
	}
	held, err := openAuthority(authorityDir(a.dir))
	if err != nil || !held.certificate.Equal(old.certificate) {
		t.Errorf("the key of the old authority is gone: %v", err)
	}
}

// TestAnInterruptedRolloverGoesOn covers an agent that ended between writing the new key and recording that
// it is the newest.
func TestAnInterruptedRolloverGoesOn(t *testing.T) {
	c := newCluster(t)
	a, b := c.first, c.mustJoin(t, "b")
	begins(t, a, false)
	if err := os.Remove(trustPath(a.dir)); err != nil {
		t.Fatal(err)
	}
	again, err := Load(filepath.Dir(a.dir))
	if err != nil {
		t.Fatal(err)
	}
	if !again.HasAuthority() || !again.RolloverStatus().UnderWay || again.RolloverStatus().Ends.IsZero() {
		t.Errorf("after the restart: %+v", again.RolloverStatus())
	}
	renews(t, b, again)
	wantTrust(t, "taken up", again, b, true)
}

// TestRemovalsOutliveTheAuthority checks that removals survive the authority that has signed them, even a
// removal of which the new authority hears only with a renewal.
func TestRemovalsOutliveTheAuthority(t *testing.T) {
	c := newCluster(t)
	a, b := c.first, c.mustJoin(t, "b")
	d, e := c.mustJoin(t, "d"), c.mustJoin(t, "e")
	promote(t, a, b)
	removed(t, c, d)
	if _, err := b.RemoveNode(Peer{Name: "e", Number: e.Node.Number}); err != nil {
		t.Fatal(err)
	}
	begins(t, a, false)
	renews(t, a, a)
	renews(t, b, a)
	hears(t, b, a)
	if err := a.FinishRollover(false); err != nil {
		t.Fatal(err)
	}
	hears(t, b, a)
	for _, id := range []*Identity{restarted(t, a), restarted(t, b)} {
		if len(id.SignedRevocations()) != 2 {
			t.Errorf("node %s can pass on %v of %v", id.Node.Name, id.SignedRevocations(), id.Revocations())
		}
	}
	c.authority = authorityOf(t, a)
	c.address, c.served = serve(t, &Server{
		identity: a, authority: a.Authority, nodes: func() []Node { return nil },
	}, a, a.Certificate())
	if f := c.mustJoin(t, "f"); len(f.Revocations()) != 2 {
		t.Errorf("a new node knows %v", f.Revocations())
	}
}

// TestJoinDuringARollover checks that a new node trusts nodes that have not renewed their certificates yet.
func TestJoinDuringARollover(t *testing.T) {
	c := newCluster(t)
	a, b := c.first, c.mustJoin(t, "b")
	early := c.token(t, "")
	begins(t, a, false)
	renews(t, a, a)
	c.authority = authorityOf(t, a)
	c.address, c.served = serve(t, &Server{
		identity: a, authority: a.Authority, nodes: func() []Node { return nil },
	}, a, a.Certificate())
	if _, err := c.join(t, early, "d"); !errors.Is(err, ErrWrongCluster) {
		t.Errorf("with a token of before the rollover: %v", err)
	}
	d := c.mustJoin(t, "d")
	wantTrust(t, "joined", d, b, true)
	wantTrust(t, "joined", b, d, true)
	if d.NeedsRenewal(time.Now()) {
		t.Error("it is not under the new authority")
	}
}
