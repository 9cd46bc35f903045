package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strconv"
	"time"
)

const (
	caLifetime = 10 * 365 * 24 * time.Hour
	// nodeLifetime bounds how long a stolen key can be used if nobody has removed its node. Renewal begins
	// at half of it.
	nodeLifetime = 30 * 24 * time.Hour
	// backdate lets a node whose clock is behind use a certificate at once.
	backdate = time.Hour
	// domain makes a node's name a host name that the standard library verifies; it is never resolved.
	domain = ".node.godwit"
)

// Peer is the node at the other end of a verified connection.
type Peer struct {
	Name   string
	Number int
}

// String gives the name, for messages.
func (p Peer) String() string { return p.Name }

// ServerName is the name for which a node's certificate is valid, for the verification in crypto/tls.
func ServerName(node string) string { return node + domain }

// PeerOf reads the node out of a certificate that has been verified.
func PeerOf(certificate *x509.Certificate) (Peer, error) {
	if len(certificate.URIs) != 1 || len(certificate.DNSNames) != 1 {
		return Peer{}, errors.New("certificate is not one of a godwit node: it names no node")
	}
	uri := certificate.URIs[0]
	name := ""
	if len(uri.Path) > 1 {
		name = uri.Path[1:]
	}
	number, err := strconv.Atoi(uri.Query().Get("number"))
	peer := Peer{Name: name, Number: number}
	if err != nil || nodeURI(peer).String() != uri.String() || CheckName(name) != nil || number < 1 ||
		number > MaxNumber || certificate.DNSNames[0] != ServerName(name) {
		return Peer{}, fmt.Errorf("certificate is not one of a godwit node: it names %q", uri)
	}
	return peer, nil
}

func nodeURI(peer Peer) *url.URL {
	return &url.URL{
		Scheme: "godwit", Host: "node", Path: "/" + peer.Name,
		RawQuery: url.Values{"number": {strconv.Itoa(peer.Number)}}.Encode(),
	}
}

// Fingerprint is the SHA-256 of the CA's certificate.
type Fingerprint [sha256.Size]byte

func fingerprint(certificate *x509.Certificate) Fingerprint { return sha256.Sum256(certificate.Raw) }

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// newCA makes the self-signed certificate of a cluster.
func newCA(key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	template, err := authorityTemplate(now)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the cluster: %w", err)
	}
	return x509.ParseCertificate(der)
}

func authorityTemplate(now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "godwit cluster " + serial.Text(36)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}, nil
}

// newSuccessor makes the certificate of the authority that is to take over from base, signed by base.
func newSuccessor(base *x509.Certificate, baseKey crypto.Signer, public crypto.PublicKey, version uint64,
	now time.Time) (*x509.Certificate, error) {
	template, err := authorityTemplate(now)
	if err != nil {
		return nil, err
	}
	template.Subject.SerialNumber = strconv.FormatUint(version, 10)
	der, err := x509.CreateCertificate(rand.Reader, template, base, public, baseKey)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the new authority: %w", err)
	}
	return x509.ParseCertificate(der)
}

// issueTimes returns the validity of a certificate that is issued now. It begins after that of the node's
// previous certificate, even if the clock went back by less than backdate: entries of nodes are ordered by
// it, see newer. A certificate that begins in the future was issued with a wrong clock, and is ignored.
func issueTimes(ca *x509.Certificate, now, before time.Time) (begin, end time.Time, err error) {
	clock := now.UTC().Format(time.RFC3339)
	if now.Before(ca.NotBefore) {
		return begin, end, fmt.Errorf("%w: this node's clock says %s, but the authority was made at %s; "+
			"set the clock", ErrClockSkew, clock, ca.NotBefore.UTC().Format(time.RFC3339))
	}
	if now.After(ca.NotAfter) {
		return begin, end, fmt.Errorf("the authority of this cluster expired on %s, and the clock here "+
			"says %s", ca.NotAfter.Format(time.DateOnly), clock)
	}
	// Certificates have no fractions of a second.
	begin, end = now.Add(-backdate).Truncate(time.Second), now.Add(nodeLifetime)
	if !begin.After(before) && before.Before(now) {
		begin = before.Add(time.Second)
	}
	if end.After(ca.NotAfter) {
		end = ca.NotAfter
	}
	return begin, end, nil
}

// issue signs a certificate for a node's public key; the validity of the node's previous one begins at
// before. The certificate never outlives the CA's.
func issue(ca *x509.Certificate, caKey crypto.Signer, public crypto.PublicKey, peer Peer,
	now, before time.Time) (*x509.Certificate, error) {
	begin, end, err := issueTimes(ca, now, before)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: peer.Name},
		NotBefore:    begin,
		NotAfter:     end,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{ServerName(peer.Name)},
		URIs:         []*url.URL{nodeURI(peer)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, public, caKey)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of node %s: %w", peer.Name, err)
	}
	return x509.ParseCertificate(der)
}

// newRequest makes a key and a signing request that proves the possession of it. What the certificate will
// say is decided by the CA, so the request names nothing.
func newRequest() (crypto.Signer, []byte, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make a signing request: %w", err)
	}
	return key, der, nil
}

// requestKey checks a signing request and returns its key. It accepts only the kind of key that newRequest
// makes.
func requestKey(der []byte) (crypto.PublicKey, error) {
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("signing request: %w", err)
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("signing request: the key is not of the kind ECDSA P-256")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("signing request: %w", err)
	}
	return key, nil
}

// encodePair returns the PEM of a key and its chain.
func encodePair(key crypto.Signer, chain ...*x509.Certificate) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	for _, certificate := range chain {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})...)
	}
	return out, nil
}

// loadPair reads what encodePair made, as a certificate for crypto/tls with its leaf parsed.
func loadPair(path string) (*tls.Certificate, error) {
	data, err := readFile(path, maxMessageBytes)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &pair, nil
}
