package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/wire/identity"
)

// ALPN names of the protocols between nodes that know each other.
const (
	controlProtocol = "h2" // as HTTP/2 and so gRPC have it
	dataProtocol    = "godwit-data/1"
)

// ErrWrongPeer means that the node at an address is not the expected one, or not a node of this cluster.
var ErrWrongPeer = errors.New("not the expected node")

// serverConfig demands a certificate from every peer, except from peers that cannot have one yet.
func serverConfig(id *identity.Identity) *tls.Config {
	mutual := baseConfig(controlProtocol, dataProtocol, identity.RenewProtocol)
	mutual.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return id.Certificate(),
			nil
	}
	// VerifyConnection verifies the certificate, because the authorities change while the agent runs.
	mutual.ClientAuth = tls.RequireAnyClientCert
	mutual.VerifyConnection = func(state tls.ConnectionState) error {
		if state.NegotiatedProtocol == "" {
			return errors.New("the client names no protocol (ALPN)")
		}
		_, err := id.VerifyPeer(state.PeerCertificates, x509.VerifyOptions{
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		return err
	}
	join := baseConfig(identity.JoinProtocol)
	join.GetCertificate = mutual.GetCertificate

	server := baseConfig()
	server.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Equal(hello.SupportedProtos, []string{identity.JoinProtocol}) {
			return join, nil
		}
		return mutual, nil
	}
	return server
}

// clientConfig accepts only one node.
func clientConfig(id *identity.Identity, expected, protocol string) *tls.Config {
	config := baseConfig(protocol)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return id.Certificate(), nil
	}
	// VerifyConnection verifies the certificate, because the authorities change while the agent runs.
	config.InsecureSkipVerify = true
	config.ServerName = identity.ServerName(expected)
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if state.NegotiatedProtocol != protocol {
			return fmt.Errorf("the server does not speak %s", protocol)
		}
		peer, err := id.VerifyPeer(state.PeerCertificates, x509.VerifyOptions{
			DNSName: identity.ServerName(expected), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err == nil && peer.Name != expected {
			err = fmt.Errorf("%w: it is %s", ErrWrongPeer, peer.Name)
		}
		return err
	}
	return config
}

// baseConfig is the common part of all configurations. There are no session tickets, because a resumed
// session would not show its certificate again. Records always have their full size: crypto/tls starts with
// small ones for the sake of browsers.
func baseConfig(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		NextProtos:                  protocols,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
	}
}

// peerOf returns the peer's identity, after VerifyConnection has verified it.
func peerOf(state tls.ConnectionState) (identity.Peer, error) {
	if !state.HandshakeComplete || len(state.PeerCertificates) == 0 {
		return identity.Peer{}, errors.New("the peer's certificate has not been verified")
	}
	return identity.PeerOf(state.PeerCertificates[0])
}

// explain returns the meaning of a failed handshake for an operator.
func explain(err error) error {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var other x509.HostnameError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("certificate of the other node is not valid at this time (%s here): it has "+
			"expired, or a clock "+
			"is wrong: %w", time.Now().UTC().Format(time.RFC3339), err)
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: it belongs to another cluster: %w", ErrWrongPeer, err)
	case errors.As(err, &other):
		return fmt.Errorf("%w: %w", ErrWrongPeer, err)
	}
	return err
}
