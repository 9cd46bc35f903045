package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	maxRevocationsBytes = 128 << 10
	maxSignatureBytes   = 128 // ECDSA P-256 in ASN.1 takes at most 72
	// maxRevocationVersion leaves room above, so that the next version can always be computed.
	maxRevocationVersion = 1 << 40
)

// ErrRevoked says that a node was removed from the cluster.
var ErrRevoked = errors.New("node was removed from this cluster")

// ErrRevocationsUnread says that this node does not know which nodes were removed, and so trusts none.
var ErrRevocationsUnread = errors.New("cannot read the list of removed nodes, so this node trusts no other")

// Revocation removes a node from the cluster for good. The authority signs it, so every node can pass it on.
// No number is given twice, so the list of revocations only grows and has at most MaxNumber entries. Two
// lists merge to their union: an old list never brings a node back.
type Revocation struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	// Version is the version of the list with this entry: one more than the highest that its signer knew.
	Version   uint64    `json:"version"`
	Time      time.Time `json:"time"`
	Signature []byte    `json:"signature"`
}

// signed is the digest that the authority signs.
func (r Revocation) signed() []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "godwit-revocation/1\n%d\n%s\n%d\n%d\n", r.Number, r.Name,
		r.Version, r.Time.Unix()))
	return sum[:]
}

func (r Revocation) validate() error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	if r.Number < 1 || r.Number > MaxNumber {
		return fmt.Errorf("revocation of node %s has the number %d; numbers are 1 to %d", r.Name, r.Number,
			MaxNumber)
	}
	if r.Version < 1 || r.Version > maxRevocationVersion {
		return fmt.Errorf("revocation of node %s has the version %d; versions are 1 to %d", r.Name, r.Version,
			uint64(maxRevocationVersion))
	}
	if len(r.Signature) == 0 || len(r.Signature) > maxSignatureBytes {
		return fmt.Errorf("revocation of node %s has a signature of %d bytes; the limit is %d", r.Name,
			len(r.Signature), maxSignatureBytes)
	}
	return nil
}

// ParseRevocations decodes a list of revocations and checks its form. Identity.Revoke checks the signatures.
func ParseRevocations(data []byte) ([]Revocation, error) {
	if len(data) > maxRevocationsBytes {
		return nil, fmt.Errorf("list of revocations has %d bytes; the limit is %d", len(data),
			maxRevocationsBytes)
	}
	var list []Revocation
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("decode list of revocations: %w", err)
	}
	return list, validateRevocations(list)
}

func validateRevocations(list []Revocation) error {
	if len(list) > MaxNumber {
		return fmt.Errorf("list of revocations has %d entries; the limit is %d", len(list), MaxNumber)
	}
	numbers := map[int]bool{}
	for _, one := range list {
		if err := one.validate(); err != nil {
			return fmt.Errorf("list of revocations: %w", err)
		}
		if numbers[one.Number] {
			return fmt.Errorf("list of revocations: number %d occurs twice", one.Number)
		}
		numbers[one.Number] = true
	}
	return nil
}

// verify checks that one of the authorities signed the revocation.
func (r Revocation) verify(authorities []*x509.Certificate) error {
	for _, authority := range authorities {
		if key, ok := authority.PublicKey.(*ecdsa.PublicKey); ok &&
			ecdsa.VerifyASN1(key, r.signed(), r.Signature) {
			return nil
		}
	}
	return fmt.Errorf("this cluster's authority did not sign the revocation of node %s", r.Name)
}

func signRevocation(key crypto.Signer, r Revocation) (Revocation, error) {
	var err error
	if r.Signature, err = key.Sign(rand.Reader, r.signed(), crypto.SHA256); err != nil {
		return r, fmt.Errorf("sign the removal of node %s: %w", r.Name, err)
	}
	return r, nil
}

// revoked is this node's list of removed nodes.
type revoked struct {
	mu   sync.Mutex
	list []Revocation // in order of number
	// unread is why the list on disk could not be read. Until this node can read the list, it trusts no peer.
	unread error
	// unsaved: the list on disk lacks an entry of this one.
	unsaved bool
}

func (v *revoked) index(number int) (int, bool) {
	return slices.BinarySearchFunc(v.list, number, func(r Revocation, n int) int { return r.Number - n })
}

func (v *revoked) find(number int) (Revocation, bool) {
	i, found := v.index(number)
	if !found {
		return Revocation{}, false
	}
	return v.list[i], true
}

// check refuses a removed peer, and every peer while this node does not know which were removed.
func (v *revoked) check(peer Peer) error {
	if v.unread != nil {
		return v.unread
	}
	return v.removed(peer)
}

func (v *revoked) removed(peer Peer) error {
	if one, found := v.find(peer.Number); found {
		return fmt.Errorf("%w: %s (number %d) was removed at %s", ErrRevoked, one.Name, one.Number,
			one.Time.UTC().Format(time.RFC3339))
	}
	return nil
}

// add merges a list into this one and returns the entries that are new.
func (v *revoked) add(list []Revocation) (fresh []Revocation) {
	for _, one := range list {
		if n, known := v.index(one.Number); known {
			v.list[n].Signature = one.Signature
			continue
		}
		fresh = append(fresh, one)
		v.list = append(v.list, one)
		slices.SortFunc(v.list, func(a, b Revocation) int { return a.Number - b.Number })
	}
	return fresh
}

// Removed reports whether this node knows that a node was removed.
func (i *Identity) Removed(peer Peer) bool { return i.revoked.checkRemoved(peer) != nil }

// checkRemoved is removed for callers that do not hold the lock.
func (v *revoked) checkRemoved(peer Peer) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.removed(peer)
}

// known returns an error while this node does not know which nodes were removed.
func (v *revoked) known() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unread
}

// CheckPeer refuses a removed peer, and every peer while this node cannot read the list of removed nodes.
// Errors: ErrRevoked, ErrRevocationsUnread.
func (i *Identity) CheckPeer(peer Peer) error {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	return i.revoked.check(peer)
}

// Revocations lists the removed nodes that this node knows of, in order of number.
func (i *Identity) Revocations() []Revocation {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	return slices.Clone(i.revoked.list)
}

// SignedRevocations lists the removals that this node can pass on: those signed by a trusted authority.
func (i *Identity) SignedRevocations() []Revocation {
	authorities := i.trust.Load().authorities()
	return slices.DeleteFunc(i.Revocations(), func(r Revocation) bool { return r.verify(authorities) != nil })
}

// RevocationVersion is the version of this node's list; 0: no node was removed.
func (i *Identity) RevocationVersion() uint64 { return versionOf(i.Revocations()) }

func versionOf(list []Revocation) (version uint64) {
	for _, one := range list {
		version = max(version, one.Version)
	}
	return version
}

// betterSigned reports whether one replaces the signature of a known removal: the newest authority signed
// one, and not the known removal. Of two signatures by the newest authority, all nodes keep the same.
func (v *revoked) betterSigned(one Revocation, authority *x509.Certificate) bool {
	newest := []*x509.Certificate{authority}
	v.mu.Lock()
	known, _ := v.find(one.Number)
	v.mu.Unlock()
	same := known
	same.Signature = one.Signature
	if bytes.Equal(known.Signature, one.Signature) || same.verify(newest) != nil {
		return false
	}
	return known.verify(newest) != nil || bytes.Compare(one.Signature, known.Signature) < 0
}

// Revoke applies revocations heard from another node and returns those that are new: it closes connections of
// the removed nodes and writes the list to disk. It skips a revocation that no trusted authority signed, and
// returns an error for it. A list that could not be written still applies, and KeepRevocations writes it
// later.
func (i *Identity) Revoke(list []Revocation) (fresh []Revocation, err error) {
	var failed []error
	var signed []Revocation
	for _, one := range list {
		if i.Removed(Peer{Number: one.Number}) && !i.revoked.betterSigned(one, i.trust.Load().newest()) {
			continue // this node knows it
		}
		if err := errors.Join(one.validate(), one.verify(i.trust.Load().authorities())); err != nil {
			failed = append(failed, err)
			continue
		}
		signed = append(signed, one)
	}
	if len(signed) == 0 {
		return nil, errors.Join(failed...)
	}
	i.revoked.mu.Lock()
	fresh = i.revoked.add(signed)
	ended := i.conns.drop(fresh)
	i.revoked.unsaved = true
	failed = append(failed, i.revoked.save(i.dir))
	i.revoked.mu.Unlock()
	closeAll(ended)
	return fresh, errors.Join(failed...)
}

func revocationsPath(dir string) string { return filepath.Join(dir, "revoked.json") }

// save writes the list if the one on disk lacks an entry. A list that could not be read is not overwritten.
func (v *revoked) save(dir string) error {
	if v.unread != nil || !v.unsaved {
		return v.unread
	}
	if err := writeJSON(revocationsPath(dir), v.list); err != nil {
		return fmt.Errorf("cannot write the list of removed nodes; the agent tries again: %w", err)
	}
	v.unsaved = false
	return nil
}

// KeepRevocations retries a read or a write of the list of removed nodes that failed before. It returns the
// removals that are new. Callers may call it often: it costs little when nothing failed. Error:
// ErrRevocationsUnread.
func (i *Identity) KeepRevocations() (fresh []Revocation, err error) {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	if i.revoked.unread != nil {
		fresh = i.revoked.load(i.dir, i.trust.Load()) // no connection was made meanwhile
	}
	return fresh, i.revoked.save(i.dir)
}

// load reads the list of removed nodes. It marks a list that it cannot read as unread instead of taking it
// for an empty one. The caller holds revoked.mu, or no other goroutine has the Identity yet.
func (v *revoked) load(dir string, t *trust) (fresh []Revocation) {
	list, err := readRevocations(dir, t)
	if err != nil {
		v.unread = fmt.Errorf("%w: %w; copy %s from another node of this cluster, or write [] to it "+
			"if no node was ever removed", ErrRevocationsUnread, err, revocationsPath(dir))
		return nil
	}
	v.unread = nil
	return v.add(list)
}

func readRevocations(dir string, t *trust) ([]Revocation, error) {
	data, err := readFile(revocationsPath(dir), maxRevocationsBytes)
	if isNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := ParseRevocations(data)
	if err != nil {
		return nil, err
	}
	for _, one := range list {
		if err := one.verify(append(t.authorities(), t.past...)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// RemoveNode removes a node from the cluster for good and ends its tokens. This node must have the authority.
// Another node may get the removed node's name, but none gets its number.
func (i *Identity) RemoveNode(peer Peer) (Revocation, error) {
	authority, err := i.Authority()
	if err != nil {
		return Revocation{}, err
	}
	list := i.Revocations()
	for _, one := range list {
		if one.Number == peer.Number { // complete a removal that was interrupted
			return one, errors.Join(writeJSON(revocationsPath(i.dir), list), authority.forget(peer))
		}
	}
	one, err := signRevocation(authority.key, Revocation{
		Number: peer.Number, Name: peer.Name, Version: versionOf(list) + 1,
		Time: authority.now().UTC().Truncate(time.Second),
	})
	if err != nil {
		return one, err
	}
	if _, err := i.Revoke([]Revocation{one}); err != nil {
		return one, fmt.Errorf("remove node %s: %w", peer.Name, err)
	}
	return one, authority.forget(peer)
}

// forget drops a removed node and its tokens from the authority's state.
func (a *Authority) forget(peer Peer) error {
	return a.change(func(state *authorityState) error {
		state.Nodes = slices.DeleteFunc(state.Nodes, func(p Peer) bool { return p.Number == peer.Number })
		state.Tokens = slices.DeleteFunc(state.Tokens,
			func(t tokenRecord) bool { return t.Node == peer.Name })
		return nil
	})
}
