package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
)

const (
	maxSuccessionBytes = 16 << 10
	maxTrustBytes      = 1 << 20
	// maxTrustVersion leaves room above, so that the next version can always be computed.
	maxTrustVersion = 1 << 40
)

// trust holds the authorities whose signatures this node believes. A trust is immutable; each change makes a
// new one.
//
// A rollover replaces the authority of the cluster in two steps. First the authority (base) certifies the key
// of its successor (next). From then on certificates of both are valid, and every node renews its own under
// the successor. A node that has not heard of the successor accepts it too, because each peer shows the
// successor's certificate beside its own. Then the successor declares that it has taken over (Retirement),
// and becomes the base of all nodes that hear so.
type trust struct {
	base, next *x509.Certificate // next is nil while no rollover is under way
	// retirement made base the authority. It is nil for a cluster's first authority, and on a node that
	// joined after the rollover.
	retirement *Retirement
	// past are earlier bases: they may have signed removals that this node has stored.
	past []*x509.Certificate
}

// trustRecord is identity/trust.json. A node without that file trusts the authority in node.pem.
type trustRecord struct {
	Base       []byte      `json:"base"`
	Next       []byte      `json:"next,omitempty"`
	Retirement *Retirement `json:"retirement,omitempty"`
	Past       [][]byte    `json:"past,omitempty"`
}

// Succession is the news of a rollover that nodes pass on. An authority signed each part, so any node may
// pass it on.
type Succession struct {
	// Next is the successor's certificate (DER), signed by the authority.
	Next       []byte      `json:"next,omitempty"`
	Retirement *Retirement `json:"retirement,omitempty"`
}

// Retirement declares that an authority has taken over, and ends the trust in the authority that certified
// it.
type Retirement struct {
	Certificate []byte `json:"certificate"` // of the authority that has taken over (DER)
	Cut         bool   `json:"cut"`         // connections under the old authority end, too
	Signature   []byte `json:"signature"`   // with the key of Certificate
}

func (r *Retirement) signed() []byte {
	certificate := sha256.Sum256(r.Certificate)
	sum := sha256.Sum256(fmt.Appendf(nil, "godwit-retirement/1\n%x\n%t\n", certificate, r.Cut))
	return sum[:]
}

// newest is the authority under which nodes renew their certificates.
func (t *trust) newest() *x509.Certificate {
	if t.next != nil {
		return t.next
	}
	return t.base
}

// authorities are the authorities that this node trusts now.
func (t *trust) authorities() []*x509.Certificate {
	if t.next != nil {
		return []*x509.Certificate{t.next, t.base}
	}
	return []*x509.Certificate{t.base}
}

// issuers are the authorities that may have issued a peer's certificate: those that this node trusts, and
// successors that the peer shows and this node has not heard of.
func (t *trust) issuers(shown []*x509.Certificate) []*x509.Certificate {
	issuers := t.authorities()
	for _, one := range shown {
		if one.IsCA && checkSuccessor(t.base, one) == nil {
			issuers = append(issuers, one)
		}
	}
	return issuers
}

// verify checks a certificate against the authorities.
func (t *trust) verify(leaf *x509.Certificate, shown []*x509.Certificate, options x509.VerifyOptions) error {
	options.Roots = x509.NewCertPool()
	for _, one := range t.issuers(shown) {
		options.Roots.AddCert(one)
	}
	_, err := leaf.Verify(options)
	return err
}

// stillTrusts checks again the certificates that passed in a handshake. They may have expired since.
func (t *trust) stillTrusts(shown []*x509.Certificate) error {
	return t.verify(shown[0], shown[1:], x509.VerifyOptions{
		CurrentTime: shown[0].NotBefore.Add(backdate), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
}

// authorityVersion is the number of rollovers before an authority.
func authorityVersion(certificate *x509.Certificate) (uint64, error) {
	text := certificate.Subject.SerialNumber
	if text == "" {
		return 0, nil
	}
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil || version < 1 || version > maxTrustVersion {
		return 0, fmt.Errorf("authority has the version %.40q; versions are 1 to %d", text,
			uint64(maxTrustVersion))
	}
	return version, nil
}

// checkSuccessor checks that an authority has certified another one as its successor.
func checkSuccessor(base, next *x509.Certificate) error {
	was, err := authorityVersion(base)
	if err != nil {
		return err
	}
	is, err := authorityVersion(next)
	if err != nil {
		return err
	}
	key, ok := next.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() || key.Equal(base.PublicKey) || !next.IsCA || is <= was ||
		next.KeyUsage&x509.KeyUsageCertSign == 0 {
		return errors.New("the certificate is not that of the authority's successor")
	}
	return next.CheckSignatureFrom(base)
}

// wins decides between two successors of one authority, so that all nodes that know both choose the same one:
// the higher version, which only --force makes, and between equal versions the lower certificate. Every
// successor wins over none.
func wins(one, other *x509.Certificate) bool {
	if other == nil {
		return true
	}
	a, errA := authorityVersion(one)
	b, errB := authorityVersion(other)
	if errA != nil || errB != nil || a != b {
		return errA == nil && (errB != nil || a > b)
	}
	return bytes.Compare(one.Raw, other.Raw) < 0
}

// checkRetirement returns the authority that has taken over from base.
func checkRetirement(base *x509.Certificate, r *Retirement) (*x509.Certificate, error) {
	certificate, err := x509.ParseCertificate(r.Certificate)
	if err != nil {
		return nil, err
	}
	if err := checkSuccessor(base, certificate); err != nil {
		return nil, err
	}
	key, ok := certificate.PublicKey.(*ecdsa.PublicKey)
	if !ok || len(r.Signature) > maxSignatureBytes || !ecdsa.VerifyASN1(key, r.signed(), r.Signature) {
		return nil, errors.New("the authority that takes over did not sign the retirement of the old one")
	}
	return certificate, nil
}

// follow returns this trust after the news of a rollover. It ignores news that do not continue this trust,
// and news of a successor that lost to the one that this node follows, even if that successor has taken over
// elsewhere.
func (t *trust) follow(heard Succession) (after *trust, changed bool) {
	after = t
	if r := heard.Retirement; r != nil {
		base, err := checkRetirement(t.base, r)
		if err == nil && (base.Equal(t.next) || wins(base, t.next)) {
			after = &trust{base: base, retirement: r, past: append(slices.Clone(t.past), t.base)}
		}
	}
	if len(heard.Next) == 0 {
		return after, after != t
	}
	next, err := x509.ParseCertificate(heard.Next)
	if err != nil || checkSuccessor(after.base, next) != nil ||
		(after.next != nil && (next.Equal(after.next) || !wins(next, after.next))) {
		return after, after != t
	}
	return &trust{base: after.base, next: next, retirement: after.retirement, past: after.past}, true
}

func (t *trust) succession() Succession {
	s := Succession{Retirement: t.retirement}
	if t.next != nil {
		s.Next = t.next.Raw
	}
	return s
}

func (t *trust) record() trustRecord {
	record := trustRecord{Base: t.base.Raw, Next: t.succession().Next, Retirement: t.retirement}
	for _, one := range t.past {
		record.Past = append(record.Past, one.Raw)
	}
	return record
}

func (r trustRecord) trust() (*trust, error) {
	base, err := x509.ParseCertificate(r.Base)
	if err != nil {
		return nil, err
	}
	t := &trust{base: base, retirement: r.Retirement}
	for _, raw := range r.Past {
		one, err := x509.ParseCertificate(raw)
		if err != nil {
			return nil, err
		}
		t.past = append(t.past, one)
	}
	if len(r.Next) > 0 {
		if t.next, err = x509.ParseCertificate(r.Next); err == nil {
			err = checkSuccessor(t.base, t.next)
		}
	}
	return t, err
}

func trustPath(dir string) string { return filepath.Join(dir, "trust.json") }

// loadTrust reads which authorities this node trusts; first is the one in node.pem. It resumes a rollover
// that this node began and a crash interrupted: the key in ca.pem is then newer than the trust.
func (i *Identity) loadTrust(first *x509.Certificate) error {
	t := &trust{base: first}
	data, err := readFile(trustPath(i.dir), maxTrustBytes)
	if err == nil {
		var record trustRecord
		if err = json.Unmarshal(data, &record); err == nil {
			t, err = record.trust()
		}
	} else if isNotExist(err) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w; copy the file from another node of this cluster", trustPath(i.dir), err)
	}
	i.trust.Store(t)
	held, err := loadPair(filepath.Join(authorityDir(i.dir), "ca.pem"))
	if err != nil {
		return nil //nolint:nilerr // no authority here, or one whose use returns the error
	}
	i.held.Store(held.Leaf)
	_, err = i.follow(Succession{Next: held.Leaf.Raw})
	return err
}

// follow applies the news of a rollover and writes them to disk. The caller holds changing, or no other
// goroutine has the Identity yet.
func (i *Identity) follow(heard Succession) (retired bool, err error) {
	was := i.trust.Load()
	after, changed := was.follow(heard)
	if !changed {
		return false, nil
	}
	if err := writeJSON(trustPath(i.dir), after.record()); err != nil {
		return false, fmt.Errorf("write which authority this node trusts: %w", err)
	}
	i.trust.Store(after)
	return after.base != was.base, nil
}

// Follow applies the news of a rollover from another node. If it reports that the old authority is no longer
// trusted, the caller calls CutConnections.
func (i *Identity) Follow(heard Succession) (retired bool, err error) {
	i.changing.Lock()
	defer i.changing.Unlock()
	return i.follow(heard)
}

// ParseSuccession decodes the news of a rollover from another node. Follow checks the signatures.
func ParseSuccession(data []byte) (Succession, error) {
	var heard Succession
	if len(data) > maxSuccessionBytes {
		return heard, fmt.Errorf("the news of a rollover have %d bytes; the limit is %d", len(data),
			maxSuccessionBytes)
	}
	if err := json.Unmarshal(data, &heard); err != nil {
		return heard, fmt.Errorf("decode the news of a rollover: %w", err)
	}
	return heard, nil
}

// Succession is the news of a rollover that this node passes on. digest is the same on all nodes that trust
// the same authorities, and empty if there was no rollover.
func (i *Identity) Succession() (s Succession, digest []byte) {
	t := i.trust.Load()
	if version, _ := authorityVersion(t.newest()); version > 0 {
		sum := sha256.Sum256(append(append([]byte{}, t.base.Raw...), t.newest().Raw...))
		digest = sum[:]
	}
	return t.succession(), digest
}

// VerifyPeer checks the certificates that a peer shows in a handshake: its own, and that of its authority.
func (i *Identity) VerifyPeer(shown []*x509.Certificate, options x509.VerifyOptions) (Peer, error) {
	if len(shown) == 0 {
		return Peer{}, errors.New("the peer showed no certificate")
	}
	if err := i.trust.Load().verify(shown[0], shown[1:], options); err != nil {
		return Peer{}, err
	}
	peer, err := PeerOf(shown[0])
	if err != nil {
		return peer, err
	}
	return peer, i.CheckPeer(peer)
}

// CameAlong reports whether a node's entry is signed with a certificate of the newest authority.
func (i *Identity) CameAlong(n Node) bool {
	certificate, err := n.certificate()
	return err == nil && n.Signed() && certificate.CheckSignatureFrom(i.trust.Load().newest()) == nil
}

// signRetirement makes the second step of a rollover.
func signRetirement(key crypto.Signer, certificate *x509.Certificate, cut bool) (*Retirement, error) {
	r := &Retirement{Certificate: certificate.Raw, Cut: cut}
	var err error
	if r.Signature, err = key.Sign(rand.Reader, r.signed(), crypto.SHA256); err != nil {
		return nil, fmt.Errorf("sign the retirement of the old authority: %w", err)
	}
	return r, nil
}
