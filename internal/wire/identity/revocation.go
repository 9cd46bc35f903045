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
	"io"
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

// ErrRevoked says that a node has been removed from the cluster.
var ErrRevoked = errors.New("node has been removed from this cluster")

// ErrRevocationsUnread says that this node cannot tell which nodes have been removed, and so trusts none of
// them.
var ErrRevocationsUnread = errors.New("the list of removed nodes cannot be read, so no other node is trusted")

// Revocation takes a node out of the cluster for good. The authority signs it, so every node can pass it on.
// Numbers are never given twice, so the list of revocations only grows, has at most MaxNumber entries, and
// two lists are merged by their union: an old list never brings a node back.
type Revocation struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	// Version is that of the list with this entry: one more than the highest that its signer knew.
	Version   uint64    `json:"version"`
	Time      time.Time `json:"time"`
	Signature []byte    `json:"signature"`
}

// signed is what the signature is over.
func (r Revocation) signed() []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "godwit-revocation/1\n%d\n%s\n%d\n%d\n", r.Number, r.Name, r.Version, r.Time.Unix()))
	return sum[:]
}

func (r Revocation) validate() error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	if r.Number < 1 || r.Number > MaxNumber {
		return fmt.Errorf("number %d of node %s; numbers are 1 to %d", r.Number, r.Name, MaxNumber)
	}
	if r.Version < 1 || r.Version > maxRevocationVersion {
		return fmt.Errorf("version %d of the revocation of node %s", r.Version, r.Name)
	}
	if len(r.Signature) == 0 || len(r.Signature) > maxSignatureBytes {
		return fmt.Errorf("signature of %d bytes under the revocation of node %s", len(r.Signature), r.Name)
	}
	return nil
}

// ParseRevocations decodes a list of revocations and checks its form. Whether the authority has signed them
// is checked by Identity.Revoke.
func ParseRevocations(data []byte) ([]Revocation, error) {
	if len(data) > maxRevocationsBytes {
		return nil, fmt.Errorf("list of revocations has %d bytes; the limit is %d", len(data), maxRevocationsBytes)
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

// verify checks that one of the authorities has signed it.
func (r Revocation) verify(authorities []*x509.Certificate) error {
	for _, authority := range authorities {
		if key, ok := authority.PublicKey.(*ecdsa.PublicKey); ok && ecdsa.VerifyASN1(key, r.signed(), r.Signature) {
			return nil
		}
	}
	return fmt.Errorf("revocation of node %s is not signed by this cluster's authority", r.Name)
}

func signRevocation(key crypto.Signer, r Revocation) (Revocation, error) {
	var err error
	if r.Signature, err = key.Sign(rand.Reader, r.signed(), crypto.SHA256); err != nil {
		return r, fmt.Errorf("sign the removal of node %s: %w", r.Name, err)
	}
	return r, nil
}

// revoked is the list of a node, and the connections that end when their peer is removed.
type revoked struct {
	mu    sync.Mutex
	list  []Revocation // in order of number
	conns map[int]map[*attended]bool
	// unread is why the list on disk could not be read. Until it can be, no peer is trusted.
	unread error
	// unsaved: the list on disk lacks an entry of this one.
	unsaved bool
}

// attended is a connection to a peer, and the certificates that the peer has shown.
type attended struct {
	peer  Peer
	shown []*x509.Certificate
	conn  io.Closer
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

// check refuses a removed peer, and every peer while it is not known which were removed.
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

// add takes what is new, and returns it with the connections that it ends.
func (v *revoked) add(list []Revocation) (fresh []Revocation, ended []io.Closer) {
	for _, one := range list {
		if n, known := v.index(one.Number); known {
			v.list[n].Signature = one.Signature
			continue
		}
		fresh = append(fresh, one)
		v.list = append(v.list, one)
		slices.SortFunc(v.list, func(a, b Revocation) int { return a.Number - b.Number })
		for conn := range v.conns[one.Number] {
			ended = append(ended, conn.conn)
		}
		delete(v.conns, one.Number)
	}
	return fresh, ended
}

// Removed tells whether a node is known to have been removed.
func (i *Identity) Removed(peer Peer) bool { return i.checkRemoved(peer) != nil }

func (i *Identity) checkRemoved(peer Peer) error {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	return i.revoked.removed(peer)
}

func (i *Identity) revocationsKnown() error {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	return i.revoked.unread
}

// CheckPeer refuses a peer that has been removed, and every peer while the list of removed nodes cannot be
// read. Errors: ErrRevoked, ErrRevocationsUnread.
func (i *Identity) CheckPeer(peer Peer) error {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	return i.revoked.check(peer)
}

// Attend closes a connection when its peer is removed, or its authority is trusted no more (CutConnections),
// until leave is called. shown are the peer's certificates, which VerifyPeer has checked. Error: ErrRevoked.
func (i *Identity) Attend(shown []*x509.Certificate, conn io.Closer) (leave func(), err error) {
	v := &i.revoked
	v.mu.Lock()
	defer v.mu.Unlock()
	peer, err := PeerOf(shown[0])
	if err == nil {
		err = v.check(peer)
	}
	if err == nil { // again: the trust may have changed since the handshake
		err = i.trust.Load().stillTrusts(shown)
	}
	if err != nil {
		return nil, err
	}
	if v.conns == nil {
		v.conns = map[int]map[*attended]bool{}
	}
	if v.conns[peer.Number] == nil {
		v.conns[peer.Number] = map[*attended]bool{}
	}
	one := &attended{peer: peer, shown: shown, conn: conn}
	v.conns[peer.Number][one] = true
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.conns[peer.Number], one)
	}, nil
}

// Revocations lists the nodes that have been removed, as far as this one knows, in order of number.
func (i *Identity) Revocations() []Revocation {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	return slices.Clone(i.revoked.list)
}

// Signed lists the removals that this node can pass on: an authority that still counts has signed them.
func (i *Identity) Signed() []Revocation {
	authorities := i.authorities()
	return slices.DeleteFunc(i.Revocations(), func(r Revocation) bool { return r.verify(authorities) != nil })
}

// RevocationVersion is the version of the list that this node has; 0: nobody has been removed.
func (i *Identity) RevocationVersion() uint64 { return versionOf(i.Revocations()) }

func versionOf(list []Revocation) (version uint64) {
	for _, one := range list {
		version = max(version, one.Version)
	}
	return version
}

// betterSigned tells whether a removal that is known is now signed by the newest authority and was not
// before. Of two such signatures all nodes keep the same, so that they know the same.
func (i *Identity) betterSigned(one Revocation) bool {
	newest := []*x509.Certificate{i.trust.Load().newest()}
	i.revoked.mu.Lock()
	known, _ := i.revoked.find(one.Number)
	i.revoked.mu.Unlock()
	same := known
	same.Signature = one.Signature
	if bytes.Equal(known.Signature, one.Signature) || same.verify(newest) != nil {
		return false
	}
	return known.verify(newest) != nil || bytes.Compare(one.Signature, known.Signature) < 0
}

// Revoke takes revocations that another node has told of and returns those that are new. They hold from now
// on: connections of the nodes are closed, and they are on disk. One that the authority has not signed is
// left out and told of in the error. A list that could not be written still holds, and KeepRevocations writes
// it later.
func (i *Identity) Revoke(list []Revocation) (fresh []Revocation, err error) {
	var failed []error
	var signed []Revocation
	for _, one := range list {
		if i.Removed(Peer{Number: one.Number}) && !i.betterSigned(one) {
			continue // it is known
		}
		if err := errors.Join(one.validate(), one.verify(i.authorities())); err != nil {
			failed = append(failed, err)
			continue
		}
		signed = append(signed, one)
	}
	if len(signed) == 0 {
		return nil, errors.Join(failed...)
	}
	i.revoked.mu.Lock()
	fresh, ended := i.revoked.add(signed)
	i.revoked.unsaved = true
	failed = append(failed, i.revoked.save(i.dir))
	i.revoked.mu.Unlock()
	for _, conn := range ended {
		_ = conn.Close() // its peer is gone, whatever it says
	}
	return fresh, errors.Join(failed...)
}

func revocationsPath(dir string) string { return filepath.Join(dir, "revoked.json") }

// save writes the list if the one on disk lacks an entry. A list that could not be read is not overwritten.
func (v *revoked) save(dir string) error {
	if v.unread != nil || !v.unsaved {
		return v.unread
	}
	if err := writeJSON(revocationsPath(dir), v.list); err != nil {
		return fmt.Errorf("the list of removed nodes cannot be written; it is tried again: %w", err)
	}
	v.unsaved = false
	return nil
}

// KeepRevocations writes the list of removed nodes if that failed before, and reads it if it could not be
// read before. It returns the removals that are new. It is cheap when there is nothing to do, and is meant to
// be called often. Error: ErrRevocationsUnread.
func (i *Identity) KeepRevocations() (fresh []Revocation, err error) {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	if i.revoked.unread != nil {
		fresh = i.loadRevocations() // no connection can have been made meanwhile
	}
	return fresh, i.revoked.save(i.dir)
}

// loadRevocations reads the list of removed nodes. A list that cannot be read is not an empty one: it is
// noted as unread. The caller has locked revoked, or is alone.
func (i *Identity) loadRevocations() (fresh []Revocation) {
	list, err := i.readRevocations()
	if err != nil {
		i.revoked.unread = fmt.Errorf("%w: %w; copy the file %s from another node of this "+
			"cluster, where it is the same, or write [] to it if no node was ever removed",
			ErrRevocationsUnread, err, revocationsPath(i.dir))
		return nil
	}
	i.revoked.unread = nil
	fresh, _ = i.revoked.add(list)
	return fresh
}

func (i *Identity) readRevocations() ([]Revocation, error) {
	data, err := readFile(revocationsPath(i.dir), maxRevocationsBytes)
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
	t := i.trust.Load()
	for _, one := range list {
		if err := one.verify(append(t.authorities(), t.past...)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// RemoveNode removes a node from the cluster for good; this node must have the authority. Its tokens end, its
// name may be given again, its number never is.
func (i *Identity) RemoveNode(peer Peer) (Revocation, error) {
	authority, err := i.Authority()
	if err != nil {
		return Revocation{}, err
	}
	list := i.Revocations()
	for _, one := range list {
		if one.Number == peer.Number { // again: what an interruption has left undone is done now
			return one, errors.Join(writeJSON(revocationsPath(i.dir), list), authority.forget(peer))
		}
	}
	one, err := signRevocation(authority.key, Revocation{
		Number: peer.Number, Name: peer.Name, Version: versionOf(list) + 1, Time: authority.now().UTC().Truncate(time.Second),
	})
	if err != nil {
		return one, err
	}
	if _, err := i.Revoke([]Revocation{one}); err != nil {
		return one, fmt.Errorf("remove node %s: %w", peer.Name, err)
	}
	return one, authority.forget(peer)
}

// forget drops what the authority has of a node that was removed.
func (a *Authority) forget(peer Peer) error {
	return a.change(func(state *authorityState) error {
		state.Nodes = slices.DeleteFunc(state.Nodes, func(p Peer) bool { return p.Number == peer.Number })
		state.Tokens = slices.DeleteFunc(state.Tokens, func(t tokenRecord) bool { return t.Node == peer.Name })
		return nil
	})
}
