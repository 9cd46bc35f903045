package pinned

import (
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
	"time"
)

// lifetime is long: the fingerprint is what counts, and a new certificate makes all tokens useless.
const (
	lifetime = 20 * 365 * 24 * time.Hour
	backdate = 24 * time.Hour
)

// ErrWrongServer means that the server is not the one that the token was made for.
var ErrWrongServer = errors.New("not the server that the token names")

// NewCertificate makes a key with a certificate, as PEM.
func NewCertificate(name string, now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(lifetime), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...), nil
}

// Parse reads what NewCertificate made.
func Parse(pair []byte) (tls.Certificate, Fingerprint, error) {
	certificate, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		return tls.Certificate{}, Fingerprint{}, fmt.Errorf("read the server's certificate: %w", err)
	}
	return certificate, sha256.Sum256(certificate.Certificate[0]), nil
}

// ServerConfig shows a certificate, and asks clients for theirs, which they need not have and which the
// caller verifies. Sessions are not resumed: each connection shows its certificates.
func ServerConfig(certificate tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate},
		ClientAuth: tls.RequestClientCert, SessionTicketsDisabled: true,
	}
}

// ClientConfig accepts only the server with the fingerprint. certificate returns the client's certificate;
// nil: it has none.
func ClientConfig(server Fingerprint, certificate func() *tls.Certificate) *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The certificate is known by its fingerprint, which VerifyConnection checks in every handshake.
		InsecureSkipVerify: true, //nolint:gosec // verified by fingerprint, see above
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 ||
				sha256.Sum256(state.PeerCertificates[0].Raw) != server {
				return fmt.Errorf("%w: check the address; somebody may be intercepting the connection",
					ErrWrongServer)
			}
			return nil
		},
	}
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate(), nil
		}
	}
	return config
}
