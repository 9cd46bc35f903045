package wire

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/wire/identity"
)

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// testNode is a node that listens on loopback.
type testNode struct {
	id       *identity.Identity
	state    string
	listener *Listener

	mu   sync.Mutex
	logs []error
}

func (n *testNode) log(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.logs = append(n.logs, err)
}

func (n *testNode) logged() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]error(nil), n.logs...)
}

func (n *testNode) address() string { return n.listener.Addr().String() }

// firstNode makes a cluster; options may be changed before it listens.
func firstNode(t testing.TB, name string, change func(*ListenOptions)) *testNode {
	t.Helper()
	n := &testNode{state: t.TempDir()}
	var err error
	n.id, _, err = identity.Init(identity.InitOptions{
		State: n.state, Name: name, Address: "127.0.0.1", Pool: netip.MustParsePrefix("10.88.0.0/16"),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.listen(t, change)
	return n
}

func (n *testNode) listen(t testing.TB, change func(*ListenOptions)) {
	t.Helper()
	server, err := identity.NewServer(n.id, func() []identity.Node { return []identity.Node{n.id.Node} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	options := ListenOptions{Identity: n.id, Server: server, Log: n.log}
	if change != nil {
		change(&options)
	}
	if n.listener, err = Listen(testContext(t), "127.0.0.1:0", options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.listener.Close() })
}

// join makes another node of the cluster, which listens too.
func (n *testNode) join(t testing.TB, name string) *testNode {
	t.Helper()
	authority, err := n.id.Authority()
	if err != nil {
		t.Fatal(err)
	}
	token, err := authority.IssueToken(0, "")
	if err != nil {
		t.Fatal(err)
	}
	other := &testNode{state: t.TempDir()}
	other.id, _, err = identity.Join(testContext(t), identity.JoinOptions{
		State: other.state, Server: n.address(), Token: token.String(), Name: name, Address: "127.0.0.1:1",
	})
	if err != nil {
		t.Fatal(err)
	}
	other.listen(t, nil)
	return other
}

// forge signs a certificate with the cluster's true CA, but as the test wants it.
func (n *testNode) forge(t testing.TB, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.state, "identity", "ca", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := tls.X509KeyPair(data, data)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{identity.ServerName("b")},
		URIs:        []*url.URL{{Scheme: "godwit", Host: "node", Path: "/b", RawQuery: "number=2"}},
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, ca.Certificate[0]}, PrivateKey: key}
}

// replaceIdentity makes the node show another certificate, as if it were its own.
func (n *testNode) replaceIdentity(t testing.TB, certificate tls.Certificate) *identity.Identity {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey.(crypto.Signer))
	if err != nil {
		t.Fatal(err)
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	for _, part := range certificate.Certificate {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: part})...)
	}
	if err := os.WriteFile(filepath.Join(n.state, "identity", "node.pem"), out, 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := identity.Load(n.state)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (g *gate) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}
