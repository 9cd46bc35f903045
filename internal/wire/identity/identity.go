package identity

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Errors about files on disk.
var (
	ErrNone   = errors.New("this node has no identity")
	ErrExists = errors.New("this node has an identity already")
)

// Identity is this node's own identity, with the key that proves it.
type Identity struct {
	// Node is this node's entry as others should know it.
	Node Node
	// Pool is the range from which all nodes of the cluster assign container addresses.
	Pool netip.Prefix

	dir     string
	trust   atomic.Pointer[trust]
	held    heldAuthority
	current ownCertificate
	revoked revoked
	conns   connections
	// changing is locked while trust changes.
	changing sync.Mutex
}

// heldAuthority is the authority in ca.pem, which may be an old one; nil: none.
type heldAuthority struct {
	atomic.Pointer[x509.Certificate]
}

// ownCertificate is this node's certificate, as in node.pem.
type ownCertificate struct {
	atomic.Pointer[tls.Certificate]
}

// record is identity/node.json.
type record struct {
	Node
	Pool netip.Prefix `json:"pool"`
}

func identityDir(state string) string { return filepath.Join(state, "identity") }

// InitOptions describe the first node of a cluster.
type InitOptions struct {
	State   string       // the state directory
	Name    string       // of the node
	Address string       // HOST or HOST:PORT under which other nodes reach it
	Pool    netip.Prefix // of container addresses, 16 bits
	Force   bool         // set an existing identity aside and make a new one
}

// Init makes the first node of a cluster with its CA. The identity appears only when it is complete. Init
// returns where it set an older identity aside, if Force is set.
func Init(o InitOptions) (identity *Identity, setAside string, err error) {
	if err := CheckName(o.Name); err != nil {
		return nil, "", err
	}
	if err := CheckPool(o.Pool); err != nil {
		return nil, "", err
	}
	address, err := ParseAddress(o.Address)
	if err != nil {
		return nil, "", err
	}
	node := Node{Name: o.Name, Number: 1, Address: address, Revision: 1}
	setAside, err = install(o.State, o.Force, []Node{node}, func(dir string) error {
		return writeFirst(dir, record{Node: node, Pool: o.Pool.Masked()})
	})
	if err != nil {
		return nil, setAside, err
	}
	identity, err = Load(o.State)
	return identity, setAside, err
}

func writeFirst(dir string, r record) error {
	caDir := filepath.Join(dir, "ca")
	if err := os.Mkdir(caDir, privateDir); err != nil {
		return err
	}
	now := time.Now()
	peer := Peer{Name: r.Name, Number: r.Number}
	authority, err := createAuthority(caDir, peer, now)
	if err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	certificate, err := issue(authority.certificate, authority.key, key.Public(), peer, now, time.Time{})
	if err != nil {
		return err
	}
	return writeIdentity(dir, r, key, certificate, authority.certificate)
}

func writeIdentity(dir string, r record, key crypto.Signer, chain ...*x509.Certificate) error {
	pair, err := encodePair(key, chain...)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "node.pem"), pair); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "node.json"), r)
}

// install makes an identity in a separate directory and moves it into place when it is complete. A rename
// cannot replace a directory that is not empty, so an existing identity stays even if two processes try at
// once.
func install(state string, force bool, nodes []Node, write func(dir string) error) (setAside string,
	err error) {
	if err := CheckFree(state, force); err != nil {
		return "", err
	}
	// Others may pass through: containers that run as other users have their files further below.
	if err := os.MkdirAll(state, 0o711); err != nil {
		return "", fmt.Errorf("make the state directory: %w", err)
	}
	dir, err := os.MkdirTemp(state, ".identity-*") // made with mode 0700
	if err != nil {
		return "", fmt.Errorf("make an identity: %w", err)
	}
	defer os.RemoveAll(dir) // it is gone after the rename
	if err := write(dir); err != nil {
		return "", fmt.Errorf("make an identity: %w", err)
	}
	if force {
		if setAside, err = moveAside(state); err != nil {
			return "", err
		}
	}
	// The list first: without an identity it means nothing, while an identity beside an older cluster's list
	// would send this node to strangers.
	if err := SaveNodes(state, nodes); err != nil {
		return setAside, err
	}
	if err := os.Rename(dir, identityDir(state)); err != nil {
		return setAside, fmt.Errorf("make an identity: %w", err)
	}
	return setAside, syncDir(state)
}

// CheckFree reports whether an identity can be made in a state directory.
func CheckFree(state string, force bool) error {
	_, err := os.Lstat(identityDir(state))
	switch {
	case isNotExist(err) || (err == nil && force):
		return nil
	case err != nil:
		return fmt.Errorf("look for an identity: %w", err)
	}
	return fmt.Errorf("%w, in %s; with --force it is set aside and a new one is made, and nodes that know "+
		"this one "+
		"will no longer trust it", ErrExists, identityDir(state))
}

func moveAside(state string) (string, error) {
	old := identityDir(state)
	if _, err := os.Lstat(old); isNotExist(err) {
		return "", nil
	}
	aside := fmt.Sprintf("%s.replaced-%d", old, time.Now().UnixNano())
	if err := os.Rename(old, aside); err != nil {
		return "", fmt.Errorf("set the old identity aside: %w", err)
	}
	return aside, nil
}

// Load reads this node's identity. It also succeeds without the list of removed nodes, but then trusts no
// peer: see KeepRevocations. Error: ErrNone.
func Load(state string) (*Identity, error) {
	dir := identityDir(state)
	data, err := readFile(filepath.Join(dir, "node.json"), maxMessageBytes)
	if isNotExist(err) {
		return nil, fmt.Errorf("%w in %s; make one with `godwit node init` or `godwit node join`", ErrNone,
			state)
	}
	if err != nil {
		return nil, fmt.Errorf("read this node's identity: %w", err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read this node's identity: %s/node.json: %w", dir, err)
	}
	identity := &Identity{Node: r.Node, Pool: r.Pool, dir: dir, conns: connections{}}
	if err := errors.Join(r.Validate(), CheckPool(r.Pool), identity.loadCertificate()); err != nil {
		return nil, fmt.Errorf("read this node's identity: %w", err)
	}
	identity.revoked.load(dir, identity.trust.Load())
	return identity, nil
}

func (i *Identity) loadCertificate() error {
	path := filepath.Join(i.dir, "node.pem")
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s can be read by others than its owner; if nobody has: chmod 600 %s", path, path)
	}
	pair, err := loadPair(path)
	if err != nil {
		return err
	}
	if len(pair.Certificate) != 2 {
		return fmt.Errorf("%s: want a node's and the cluster's certificate, found %d", path,
			len(pair.Certificate))
	}
	authority, err := x509.ParseCertificate(pair.Certificate[1])
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	peer, err := PeerOf(pair.Leaf)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if peer.Name != i.Node.Name || peer.Number != i.Node.Number {
		return fmt.Errorf("%s is of node %s (%d), but node.json says %s (%d)", path, peer.Name, peer.Number,
			i.Node.Name, i.Node.Number)
	}
	i.current.Store(pair)
	return i.loadTrust(authority)
}

// Certificate returns this node's present certificate; Renew replaces it while connections are open.
func (i *Identity) Certificate() *tls.Certificate { return i.current.Load() }

// Fingerprint identifies this node's cluster.
func (i *Identity) Fingerprint() Fingerprint { return fingerprint(i.trust.Load().newest()) }

// Expires returns when this node's certificate expires.
func (i *Identity) Expires() time.Time { return i.Certificate().Leaf.NotAfter }

// Authority opens the CA if this node has it. Errors: ErrNotAuthority, ErrRevocationsUnread.
func (i *Identity) Authority() (*Authority, error) {
	if err := i.revoked.known(); err != nil {
		return nil, err
	}
	authority, err := openAuthority(authorityDir(i.dir))
	if err != nil {
		return nil, err
	}
	if !authority.certificate.Equal(i.trust.Load().newest()) {
		return nil, fmt.Errorf("%w: this node has an old key; run `godwit node promote %s` on a node with "+
			"the new key", ErrNotAuthority, i.Node.Name)
	}
	authority.refused = i.revoked.checkRemoved
	return authority, nil
}

// HasAuthority reports whether this node can sign: it has the key of the newest authority.
func (i *Identity) HasAuthority() bool {
	held := i.held.Load()
	return held != nil && held.Equal(i.trust.Load().newest())
}

// Current reports whether the newest authority has issued this node's certificate.
func (i *Identity) Current() bool {
	return bytes.Equal(i.Certificate().Certificate[1], i.trust.Load().newest().Raw)
}

// replace makes a renewed certificate durable and uses it from now on.
func (o *ownCertificate) replace(dir string, key crypto.Signer, certificate,
	authority *x509.Certificate) error {
	pair, err := encodePair(key, certificate, authority)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "node.pem")
	if err := writeFile(path, pair); err != nil {
		return err
	}
	loaded, err := loadPair(path)
	if err != nil {
		return err
	}
	o.Store(loaded)
	return nil
}
