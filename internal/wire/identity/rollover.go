package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// DefaultRolloverTime is how long nodes have to renew their certificates. It is the life of a certificate: a
// node that is off for longer must join again anyway.
const DefaultRolloverTime = nodeLifetime

// Errors of a rollover.
var (
	ErrRolloverUnderWay = errors.New("a rollover of the authority is under way")
	ErrNoRollover       = errors.New("no rollover of the authority is under way")
)

// rolloverPlan says when the node that began a rollover ends it, unless all nodes have renewed their
// certificates before.
type rolloverPlan struct {
	// Successor is the fingerprint of the new authority. The plan of a rollover that another one superseded
	// is still on disk, and must not end the other one.
	Successor []byte    `json:"successor"`
	Ends      time.Time `json:"ends"`
	Cut       bool      `json:"cut,omitempty"`
}

// RolloverStatus is the progress of a rollover.
type RolloverStatus struct {
	UnderWay bool
	Version  uint64 // of the newest authority: the number of rollovers so far
	// Authority and Previous are fingerprints. Previous is empty unless this node still trusts that
	// authority.
	Authority, Previous string
	// Ends and Cut are known on the node that began the rollover, and zero elsewhere.
	Ends time.Time
	Cut  bool
}

// RolloverStatus returns the progress of a rollover, as this node knows it.
func (i *Identity) RolloverStatus() RolloverStatus {
	t := i.trust.Load()
	version, _ := authorityVersion(t.newest())
	short := func(c *x509.Certificate) string { sum := fingerprint(c); return hex.EncodeToString(sum[:8]) }
	status := RolloverStatus{UnderWay: t.next != nil, Version: version, Authority: short(t.newest())}
	if t.next == nil {
		return status
	}
	status.Previous = short(t.base)
	authority, err := i.Authority()
	if err != nil {
		return status
	}
	if plan := authority.rolloverPlan(); plan != nil {
		status.Ends, status.Cut = plan.Ends, plan.Cut
	}
	return status
}

// rolloverPlan reads the plan of the rollover under way; nil: this node did not begin it, or cannot read it.
func (a *Authority) rolloverPlan() *rolloverPlan {
	state, err := a.load()
	successor := fingerprint(a.certificate)
	if err != nil || state.Rollover == nil || !bytes.Equal(state.Rollover.Successor, successor[:]) {
		return nil
	}
	return state.Rollover
}

// BeginRollover makes a new key for the authority and certifies it with the present one. This node must have
// the present key, and deletes it. Unused tokens end. With force, BeginRollover supersedes a rollover under
// way, whose key may be lost: nodes that hear of both follow this one.
func (i *Identity) BeginRollover(within time.Duration, cut, force bool) error {
	i.changing.Lock()
	defer i.changing.Unlock()
	if err := i.revoked.known(); err != nil {
		return err
	}
	t := i.trust.Load()
	if t.next != nil && !force {
		return fmt.Errorf("%w: `godwit node rollover --status` shows its progress; if the node with the new "+
			"key is lost, --force begins another rollover", ErrRolloverUnderWay)
	}
	authority, err := openAuthority(authorityDir(i.dir))
	if err != nil {
		return err
	}
	switch {
	case authority.certificate.Equal(t.base):
	case authority.certificate.Equal(t.next):
		return fmt.Errorf("%w, and this node has its key: --finish ends it", ErrRolloverUnderWay)
	default:
		return fmt.Errorf("%w: this node's key is an old one; run the command on a node with the new key",
			ErrNotAuthority)
	}
	version, err := authorityVersion(t.newest())
	if err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return fmt.Errorf("make the new key of the cluster: %w", err)
	}
	now := authority.now()
	next, err := newSuccessor(t.base, authority.key, key.Public(), version+1, now)
	if err == nil {
		err = checkSuccessor(t.base, next) // before the present key is overwritten
	}
	if err != nil {
		return err
	}
	successor := fingerprint(next)
	pair, err := encodePair(key, next)
	if err != nil {
		return err
	}
	err = authority.change(func(state *authorityState) error {
		state.Rollover = &rolloverPlan{Successor: successor[:], Ends: now.Add(within), Cut: cut}
		state.Tokens = nil
		return nil
	})
	if err != nil {
		return err
	}
	// The key before the trust: after a crash in between, loadTrust finds the key and resumes the rollover.
	if err := writeFile(filepath.Join(authorityDir(i.dir), "ca.pem"), pair); err != nil {
		return err
	}
	i.held.Store(next)
	if _, err := i.follow(Succession{Next: next.Raw}); err != nil {
		return err
	}
	return i.resign()
}

// FinishRollover ends the trust in the old authority: nodes that have not renewed their certificates must
// join again.
func (i *Identity) FinishRollover(cut bool) error {
	i.changing.Lock()
	defer i.changing.Unlock()
	if i.trust.Load().next == nil {
		return ErrNoRollover
	}
	authority, err := i.Authority()
	if err != nil {
		return err
	}
	if err := i.resign(); err != nil {
		return err
	}
	retirement, err := signRetirement(authority.key, authority.certificate, cut)
	if err != nil {
		return err
	}
	if _, err := i.follow(Succession{Retirement: retirement}); err != nil {
		return err
	}
	return authority.change(func(state *authorityState) error {
		state.Rollover = nil
		return nil
	})
}

// resign signs all removals with the key of the newest authority, if this node has that key, so that the
// removals outlive the old authority.
func (i *Identity) resign() error {
	if !i.HasAuthority() || i.trust.Load().next == nil {
		return nil
	}
	authority, err := i.Authority()
	if err != nil {
		return err
	}
	newest := []*x509.Certificate{authority.certificate}
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	for n, one := range i.revoked.list {
		if one.verify(newest) == nil {
			continue
		}
		if i.revoked.list[n], err = signRevocation(authority.key, one); err != nil {
			return err
		}
		i.revoked.unsaved = true
	}
	return i.revoked.save(i.dir)
}
