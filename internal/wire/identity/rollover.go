package identity

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// DefaultRolloverTime is how long nodes have to renew their certificates. It is the life of a certificate: a
// node that is off for longer has to join again anyway.
const DefaultRolloverTime = nodeLifetime

// Errors of a rollover.
var (
	ErrRolloverUnderWay = errors.New("a rollover of the authority is under way")
	ErrNoRollover       = errors.New("no rollover of the authority is under way")
)

// rolloverPlan is when the authority that began a rollover ends it, if not all nodes have come along before.
type rolloverPlan struct {
	Ends time.Time `json:"ends"`
	Cut  bool      `json:"cut,omitempty"`
}

// RolloverStatus is how far a rollover is.
type RolloverStatus struct {
	UnderWay bool
	Version  uint64 // of the newest authority: how many rollovers there were
	// Authority and Previous are fingerprints; Previous is empty unless it is still trusted.
	Authority, Previous string
	// Ends and Cut are known where the rollover was begun, and zero elsewhere.
	Ends time.Time
	Cut  bool
}

// RolloverStatus tells how far a rollover is, as far as this node knows.
func (i *Identity) RolloverStatus() RolloverStatus {
	t := i.trust.Load()
	version, _ := authorityVersion(t.newest())
	short := func(c *x509.Certificate) string { sum := fingerprint(c); return hex.EncodeToString(sum[:8]) }
	status := RolloverStatus{UnderWay: t.next != nil, Version: version, Authority: short(t.newest())}
	if t.next == nil {
		return status
	}
	status.Previous = short(t.base)
	if authority, err := i.Authority(); err == nil {
		_ = authority.change(func(state *authorityState) error { // what cannot be read is not known
			if state.Rollover != nil {
				status.Ends, status.Cut = state.Rollover.Ends, state.Rollover.Cut
			}
			return errUnchanged
		})
	}
	return status
}

// errUnchanged has change write nothing.
var errUnchanged = errors.New("unchanged")

// BeginRollover makes a new key for the authority and certifies it with the present one. This node must have
// the present one's key, which it forgets. Tokens that were not used end. With force it begins another
// rollover although one is under way, whose key may have been lost: nodes that hear of both follow this one.
func (i *Identity) BeginRollover(within time.Duration, cut, force bool) error {
	i.changing.Lock()
	defer i.changing.Unlock()
	if err := i.revocationsKnown(); err != nil {
		return err
	}
	t := i.trust.Load()
	if t.next != nil && !force {
		return fmt.Errorf("%w: see how far it is with `godwit node rollover --status`; if the node with the "+
			"new key is lost, --force begins another", ErrRolloverUnderWay)
	}
	authority, err := openAuthority(i.authorityDir())
	if err != nil {
		return err
	}
	switch {
	case authority.certificate.Equal(t.base):
	case authority.certificate.Equal(t.next):
		return fmt.Errorf("%w: this node has the new key, and can end it with --finish", ErrRolloverUnderWay)
	default:
		return fmt.Errorf("%w any more: it was rolled over; use a node with the new key", ErrNotAuthority)
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
	if err != nil {
		return err
	}
	pair, err := encodePair(key, next)
	if err != nil {
		return err
	}
	err = authority.change(func(state *authorityState) error {
		state.Rollover, state.Tokens = &rolloverPlan{Ends: now.Add(within), Cut: cut}, nil
		return nil
	})
	if err != nil {
		return err
	}
	// The key first: after a crash between the two, loadTrust finds it and goes on.
	if err := writeFile(filepath.Join(i.authorityDir(), "ca.pem"), pair); err != nil {
		return err
	}
	i.held.Store(next)
	if _, err := i.follow(Succession{Next: next.Raw}); err != nil {
		return err
	}
	return i.resign()
}

// FinishRollover ends the trust in the old authority: nodes that have not renewed their certificates have to
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

// resign signs all removals with the key of the newest authority, if this node has it, so that they outlive
// the old one.
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
