package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"net/url"
	"testing"
	"time"
)

func pool() netip.Prefix { return netip.MustParsePrefix("10.88.0.0/16") }

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func initNode(t testing.TB, name string) *Identity {
	t.Helper()
	id, _, err := Init(InitOptions{State: t.TempDir(), Name: name, Address: "192.0.2.1", Pool: pool()})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func authorityOf(t testing.TB, id *Identity) *Authority {
	t.Helper()
	authority, err := id.Authority()
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// roots returns the authorities that a node trusts.
func roots(id *Identity) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, authority := range id.trust.Load().authorities() {
		pool.AddCert(authority)
	}
	return pool
}

// serve answers a node's joins and renewals, and returns the address and the errors of the exchanges.
func serve(t testing.TB, server *Server, id *Identity, certificate *tls.Certificate) (string, <-chan error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*certificate},
		NextProtos: []string{JoinProtocol, RenewProtocol},
		ClientCAs:  roots(id), ClientAuth: tls.VerifyClientCertIfGiven,
	}
	errs := make(chan error, 64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			errs <- serveOne(server, tls.Server(conn, config))
		}
	}()
	return listener.Addr().String(), errs
}

func serveOne(server *Server, conn *tls.Conn) error {
	defer conn.Close()
	if err := conn.Handshake(); err != nil {
		return err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol == JoinProtocol {
		return server.ServeJoin(conn)
	}
	peer, err := PeerOf(state.PeerCertificates[0])
	if err != nil {
		return err
	}
	return server.ServeRenew(conn, peer)
}

// cluster is a CA's node that serves joins.
type cluster struct {
	first     *Identity
	authority *Authority
	address   string
	served    <-chan error
	joined    []Node
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{first: initNode(t, "a")}
	c.authority = authorityOf(t, c.first)
	server, err := NewServer(c.first, func() []Node { return append([]Node{c.first.Node}, c.joined...) },
		func(n Node) { c.joined = append(c.joined, n) })
	if err != nil {
		t.Fatal(err)
	}
	server.authority = func() (*Authority, error) { return c.authority, nil }
	c.address, c.served = serve(t, server, c.first, c.first.Certificate())
	return c
}

func (c *cluster) token(t testing.TB, node string) string {
	t.Helper()
	token, err := c.authority.IssueToken(0, node)
	if err != nil {
		t.Fatal(err)
	}
	return token.String()
}

func (c *cluster) join(t testing.TB, token, name string) (*Identity, error) {
	t.Helper()
	id, _, err := Join(testContext(t), JoinOptions{
		State: t.TempDir(), Server: c.address, Token: token, Name: name, Address: "192.0.2.2:7000",
	})
	return id, err
}

func (c *cluster) mustJoin(t testing.TB, name string) *Identity {
	t.Helper()
	id, err := c.join(t, c.token(t, ""), name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func parseURI(text string) ([]*url.URL, error) {
	parsed, err := url.Parse(text)
	return []*url.URL{parsed}, err
}

// pipe is a connection within the process.
func pipe(t testing.TB) (near, far net.Conn) {
	t.Helper()
	near, far = net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}
