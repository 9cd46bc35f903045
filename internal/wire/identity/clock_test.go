package identity

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// entryOf is the present entry of a node.
func entryOf(t *testing.T, id *Identity) Node {
	t.Helper()
	entry, err := id.Entry()
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// TestARenewedEntryIsNewer checks that a renewed entry is newer even if the certificate is renewed within a
// second, or the authority's clock went back.
func TestARenewedEntryIsNewer(t *testing.T) {
	for _, back := range []time.Duration{0, time.Second, 50 * time.Minute} {
		c := newCluster(t)
		b := c.mustJoin(t, "b")
		old := entryOf(t, b)
		c.joined = []Node{old}
		c.authority.now = func() time.Time { return time.Now().Add(-back) }
		if _, err := b.Renew(testContext(t), dialRenew(t, c, b)); err != nil {
			t.Fatalf("the clock went back by %s: %v", back, err)
		}
		entry := entryOf(t, b)
		if merged, changed := Merge([]Node{old}, []Node{entry}); !changed || merged[0] != entry {
			t.Errorf("the clock went back by %s: the old entry stays", back)
		}
	}
}

// TestAnAuthorityRenewsAcrossAJumpOfItsClock covers an authority that signed its own certificate with a
// clock that was a year ahead.
func TestAnAuthorityRenewsAcrossAJumpOfItsClock(t *testing.T) {
	c := newCluster(t)
	b := c.mustJoin(t, "b")
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	a := authorityOf(t, c.first)
	ahead := time.Now().Add(365 * 24 * time.Hour)
	wrong, err := issue(a.certificate, a.key, key.Public(), Peer{Name: "a", Number: 1}, ahead, time.Time{})
	if err == nil {
		err = c.first.current.replace(c.first.dir, key, wrong, a.certificate)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := b.VerifyNode(entryOf(t, c.first)); !errors.Is(err, ErrClockSkew) {
		t.Errorf("an entry of the future: %v", err)
	}
	if !c.first.NeedsRenewal(time.Now()) {
		t.Fatal("a certificate that is not valid yet is kept for a year")
	}
	if _, err := c.first.Renew(testContext(t), nil); err != nil {
		t.Fatal(err)
	}
	if err := b.VerifyNode(entryOf(t, c.first)); err != nil {
		t.Error(err)
	}
	wantTrust(t, "the clock is right again", b, c.first, true)
}

// TestWrongClocksAreNamed checks that every failure due to a clock says so.
func TestWrongClocksAreNamed(t *testing.T) {
	c := newCluster(t)
	b := c.mustJoin(t, "b")
	day := 24 * time.Hour
	for _, off := range []time.Duration{-2 * time.Hour, 2 * time.Hour, -40 * day, 365 * day} {
		c.authority.now = func() time.Time { return time.Now().Add(off) }
		before := b.Certificate()
		_, err := b.Renew(testContext(t), dialRenew(t, c, b))
		if !errors.Is(err, ErrClockSkew) || b.Certificate() != before {
			t.Errorf("renewal at a clock that is off by %s: %v", off, err)
		}
	}
	c.authority.now = func() time.Time { return time.Unix(0, 0) }
	_, err := c.authority.renew(Peer{Name: "b", Number: 2}, nil, time.Time{})
	if !errors.Is(err, ErrClockSkew) {
		t.Errorf("a certificate of before the authority: %v", err)
	}
}

// TestAnExpiredTokenStaysSo checks that a clock that jumps back does not revive an expired token.
func TestAnExpiredTokenStaysSo(t *testing.T) {
	c := newCluster(t)
	token := c.token(t, "")
	c.authority.now = func() time.Time { return time.Now().Add(-24 * time.Hour) }
	secret, err := ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.authority.admit(secret.secret[:], "d", nil, nil)
	if !errors.Is(err, ErrClockSkew) {
		t.Errorf("a day before the token was made: %v", err)
	}
}

// TestRemovalsDoNotAskTheClock checks that a removed node stays out whatever the clocks say.
func TestRemovalsDoNotAskTheClock(t *testing.T) {
	c := newCluster(t)
	b, d := c.mustJoin(t, "b"), c.mustJoin(t, "d")
	for _, at := range []time.Time{time.Unix(0, 0), time.Now().Add(100 * 365 * 24 * time.Hour)} {
		unsigned := Revocation{Number: 2, Name: "b", Version: 1, Time: at.UTC()}
		one, err := signRevocation(c.authority.key, unsigned)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(revocationsPath(d.dir)); err != nil {
			t.Fatal(err)
		}
		if d, err = Load(filepath.Dir(d.dir)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Revoke([]Revocation{one}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.VerifyPeer(chainOf(t, b), x509.VerifyOptions{CurrentTime: at}); err == nil {
			t.Errorf("removed at %s by its authority's clock: let in", at)
		}
		if _, err := d.Attend(chainOf(t, b), &closing{}); !errors.Is(err, ErrRevoked) {
			t.Errorf("removed at %s by its authority's clock: %v", at, err)
		}
	}
}
