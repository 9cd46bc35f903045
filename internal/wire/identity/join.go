package identity

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// ErrWrongCluster says that the server of a join is not a member of the cluster that made the token.
var ErrWrongCluster = errors.New("the node is not in the cluster that made the token")

// JoinOptions describe a node that joins a cluster.
type JoinOptions struct {
	State   string // the state directory
	Server  string // HOST or HOST:PORT of the node with the CA
	Token   string
	Name    string
	Address string // HOST or HOST:PORT under which other nodes reach this one
	Force   bool   // set an identity that exists aside
}

// Join makes this node a member of a cluster. It sends the secret only after the server has proven that it
// belongs to the token's CA. It returns where Force set an older identity aside.
func Join(ctx context.Context, o JoinOptions) (identity *Identity, setAside string, err error) {
	token, err := ParseToken(o.Token)
	if err != nil {
		return nil, "", err
	}
	if err := checkJoinOptions(&o); err != nil {
		return nil, "", err
	}
	key, request, err := newRequest()
	if err != nil {
		return nil, "", err
	}
	authority, reply, err := askToJoin(ctx, o, token, request)
	if err != nil {
		return nil, "", fmt.Errorf("join the cluster at %s: %w", o.Server, err)
	}
	peer := Peer{Name: o.Name, Number: reply.Number}
	certificate, err := checkReply(reply, authority, peer, key.Public())
	if err != nil {
		return nil, "", fmt.Errorf("join the cluster at %s: %w", o.Server, err)
	}
	node := Node{Name: o.Name, Number: reply.Number, Address: o.Address, Revision: 1}
	for _, listed := range reply.Nodes {
		if listed.Number == node.Number {
			node.Revision = listed.Revision
		}
	}
	nodes, _ := Merge(reply.Nodes, []Node{node})
	setAside, err = install(o.State, o.Force, nodes, func(dir string) error {
		if err := writeJSON(revocationsPath(dir), reply.signedRevocations(authority)); err != nil {
			return err
		}
		if err := reply.writeTrust(dir, authority); err != nil {
			return err
		}
		return writeIdentity(dir, record{Node: node, Pool: reply.Pool}, key, certificate, authority)
	})
	if err != nil {
		return nil, setAside, err
	}
	identity, err = Load(o.State)
	return identity, setAside, err
}

// checkJoinOptions finds what would fail on this side, before the join spends a token.
func checkJoinOptions(o *JoinOptions) (err error) {
	if err := CheckName(o.Name); err != nil {
		return err
	}
	if o.Address, err = ParseAddress(o.Address); err != nil {
		return err
	}
	if o.Server, err = ParseAddress(o.Server); err != nil {
		return err
	}
	if o.Server == o.Address {
		return fmt.Errorf("the node to join and this one cannot both be at %s", o.Address)
	}
	if err := CheckFree(o.State, o.Force); err != nil {
		return err
	}
	// Check that the state directory is writable.
	if err := os.MkdirAll(o.State, 0o711); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	trial, err := os.CreateTemp(o.State, ".trial-*")
	if err != nil {
		return fmt.Errorf("write to the state directory: %w", err)
	}
	return errors.Join(trial.Close(), os.Remove(trial.Name()))
}

// askToJoin connects, checks the server and sends the request.
func askToJoin(ctx context.Context, o JoinOptions, token Token, request []byte) (*x509.Certificate,
	certificateReply,
	error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	var authority *x509.Certificate
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{JoinProtocol},
		// The standard verification needs the CA's certificate, and this node knows only its fingerprint.
		// verifyServer checks the server instead, in every handshake.
		InsecureSkipVerify: true, //nolint:gosec // verified by fingerprint, see above
		VerifyConnection: func(state tls.ConnectionState) (err error) {
			authority, err = verifyServer(state, token.CA, time.Now())
			return err
		},
	}
	dialer := &tls.Dialer{Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", o.Server)
	if err != nil {
		return nil, certificateReply{}, err
	}
	defer conn.Close()
	var reply certificateReply
	err = exchange(ctx, conn, joinRequest{Secret: token.secret[:], Name: o.Name, Address: o.Address,
		Request: request, Time: time.Now()}, &reply)
	return authority, reply, err
}

// verifyServer finds the token's CA among the certificates that a server shows, and checks that this CA
// signed the server's own certificate, and that the certificate is valid now.
func verifyServer(state tls.ConnectionState, want Fingerprint, now time.Time) (*x509.Certificate, error) {
	if state.NegotiatedProtocol != JoinProtocol {
		return nil, errors.New("the server does not speak godwit's join protocol")
	}
	var authority *x509.Certificate
	for _, certificate := range state.PeerCertificates {
		if certificate.IsCA && fingerprint(certificate) == want {
			authority = certificate
		}
	}
	if authority == nil {
		return nil, fmt.Errorf("%w: check the address; if the cluster's key was replaced since, make "+
			"another token; otherwise somebody may be intercepting the connection", ErrWrongCluster)
	}
	leaf := state.PeerCertificates[0]
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, fmt.Errorf("%w: the server's certificate is valid from %s to %s, the clock here says %s",
			ErrClockSkew, leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339),
			now.UTC().Format(time.RFC3339))
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWrongCluster, err)
	}
	_, err := PeerOf(leaf)
	return authority, err
}

// exchange sends a request and waits for the answer.
func exchange(ctx context.Context, conn net.Conn, request any, reply *certificateReply) error {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) }) // ends the waits
	defer stop()
	if err := writeMessage(conn, request); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	if err := readUpTo(conn, reply, maxReplyBytes); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the server closed the connection")
		}
		return fmt.Errorf("wait for the answer: %w", err)
	}
	return reply.refused()
}

// checkReply checks that the answer has the certificate that this node asked for.
func checkReply(reply certificateReply, authority *x509.Certificate, peer Peer,
	public crypto.PublicKey) (*x509.Certificate, error) {
	certificate, err := x509.ParseCertificate(reply.Certificate)
	if err != nil {
		return nil, fmt.Errorf("check the certificate in the answer: %w", err)
	}
	if err := errors.Join(CheckPool(reply.Pool), validateNodes(reply.Nodes),
		validateRevocations(reply.Revoked)); err != nil {
		return nil, fmt.Errorf("check the answer: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	options := x509.VerifyOptions{Roots: roots, DNSName: ServerName(peer.Name)}
	if _, err := certificate.Verify(options); err != nil {
		return nil, fmt.Errorf("check the certificate in the answer: %w", err)
	}
	if got, err := PeerOf(certificate); err != nil || got != peer {
		return nil, fmt.Errorf("the certificate in the answer is of %s (%d), not of %s (%d)", got.Name,
			got.Number, peer.Name, peer.Number)
	}
	if key, ok := public.(interface{ Equal(x crypto.PublicKey) bool }); ok &&
		key.Equal(certificate.PublicKey) {
		return certificate, nil
	}
	return nil, errors.New("the certificate in the answer is for another key")
}

// writeTrust records which authorities a new node trusts: its token's, and during a rollover also the
// previous one, for nodes that have not renewed their certificates yet.
func (r *certificateReply) writeTrust(dir string, authority *x509.Certificate) error {
	if len(r.Base) == 0 {
		return nil
	}
	base, err := x509.ParseCertificate(r.Base)
	if err == nil {
		err = checkSuccessor(base, authority)
	}
	if err != nil {
		return fmt.Errorf("check the previous authority in the answer: %w", err)
	}
	return writeJSON(trustPath(dir), (&trust{base: base, next: authority}).record())
}

// signedRevocations are the answer's revocations that the authority signed. An earlier authority may have
// signed the others.
func (r *certificateReply) signedRevocations(authority *x509.Certificate) []Revocation {
	list := []Revocation{}
	for _, one := range r.Revoked {
		if one.verify([]*x509.Certificate{authority}) == nil {
			list = append(list, one)
		}
	}
	return list
}
