package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestInitRefusesToOverwrite(t *testing.T) {
	id := initNode(t, "a")
	state := filepath.Dir(id.dir)
	options := InitOptions{State: state, Name: "other", Address: "192.0.2.1", Pool: pool()}
	if _, _, err := Init(options); !errors.Is(err, ErrExists) {
		t.Fatalf("got %v", err)
	}
	if again, err := Load(state); err != nil || again.Fingerprint() != id.Fingerprint() {
		t.Fatalf("the identity changed: %v", err)
	}
	options.Force = true
	forced, aside, err := Init(options)
	if err != nil || forced.Node.Name != "other" || forced.Fingerprint() == id.Fingerprint() {
		t.Fatalf("forced: %+v, %v", forced, err)
	}
	if _, err := os.Stat(filepath.Join(aside, "node.pem")); err != nil {
		t.Errorf("the old identity was not kept: %v", err)
	}
	if nodes, err := LoadNodes(state); err != nil || len(nodes) != 1 || nodes[0].Name != "other" {
		t.Errorf("nodes.json has %v, %v", nodes, err)
	}
	left, err := filepath.Glob(filepath.Join(state, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestInitRefusesBadInput(t *testing.T) {
	good := InitOptions{Name: "a", Address: "192.0.2.1", Pool: pool()}
	for what, spoil := range map[string]func(*InitOptions){
		"name":         func(o *InitOptions) { o.Name = "A b" },
		"address":      func(o *InitOptions) { o.Address = "" },
		"port":         func(o *InitOptions) { o.Address = "192.0.2.1:0" },
		"any address":  func(o *InitOptions) { o.Address = "[::]:7443" },
		"small pool":   func(o *InitOptions) { o.Pool = netip.MustParsePrefix("10.0.0.0/24") },
		"other family": func(o *InitOptions) { o.Pool = netip.MustParsePrefix("fd00::/16") },
		"no pool":      func(o *InitOptions) { o.Pool = netip.Prefix{} },
	} {
		bad := good
		bad.State = filepath.Join(t.TempDir(), "state")
		spoil(&bad)
		if _, _, err := Init(bad); err == nil {
			t.Errorf("%s: accepted", what)
		}
		if _, err := os.Stat(bad.State); err == nil {
			t.Errorf("%s: something was made", what)
		}
	}
}

func TestLoadRefusesWhatIsNotSafe(t *testing.T) {
	if _, err := Load(t.TempDir()); !errors.Is(err, ErrNone) {
		t.Errorf("empty: %v", err)
	}
	id, other := initNode(t, "a"), initNode(t, "b")
	key := filepath.Join(id.dir, "node.pem")
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(filepath.Dir(id.dir)); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that all can read: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(other.dir, "node.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(filepath.Dir(id.dir)); err == nil {
		t.Error("another node's key was taken")
	}
}

func TestRenewHere(t *testing.T) {
	id := initNode(t, "a")
	before := id.Certificate()
	if id.NeedsRenewal(time.Now()) || !id.NeedsRenewal(time.Now().Add(nodeLifetime*11/20)) {
		t.Error("a certificate needs renewal when half of its life is left")
	}
	if _, err := id.Renew(testContext(t), nil); err != nil {
		t.Fatal(err)
	}
	after := id.Certificate()
	if after.Leaf.SerialNumber.Cmp(before.Leaf.SerialNumber) == 0 ||
		after.Leaf.PublicKeyAlgorithm != before.Leaf.PublicKeyAlgorithm {
		t.Error("the certificate is the old one")
	}
	loaded, err := Load(filepath.Dir(id.dir))
	if err != nil || loaded.Certificate().Leaf.SerialNumber.Cmp(after.Leaf.SerialNumber) != 0 {
		t.Errorf("the disk has another certificate: %v", err)
	}
}

func TestRenewOverTheNetwork(t *testing.T) {
	c := newCluster(t)
	b := c.mustJoin(t, "b")
	<-c.served
	serial := b.Certificate().Leaf.SerialNumber
	nodes, err := b.Renew(testContext(t), dialRenew(t, c, b))
	if err != nil || len(nodes) != 2 {
		t.Fatalf("%v, %v", nodes, err)
	}
	if b.Certificate().Leaf.SerialNumber.Cmp(serial) == 0 {
		t.Error("the certificate is the old one")
	}
	if _, err := b.Renew(testContext(t), dialRenew(t, c, b)); err != nil {
		t.Errorf("again, with the renewed one: %v", err)
	}
	// The CA does not know the node: the CA was promoted since, or its state was restored from a backup.
	// The number is not assigned again.
	forget := func(s *authorityState) error { s.Nodes, s.LastNumber = s.Nodes[:1], 1; return nil }
	if err := c.authority.change(forget); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Renew(testContext(t), dialRenew(t, c, b)); err != nil {
		t.Errorf("a node with a certificate of this authority: %v", err)
	}
	if d := c.mustJoin(t, "d"); d.Node.Number != 3 {
		t.Errorf("the next node has number %d", d.Node.Number)
	}
}

func dialRenew(t *testing.T, c *cluster, id *Identity) *tls.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", c.address, &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots(id), ServerName: ServerName("a"),
		NextProtos: []string{RenewProtocol}, Certificates: []tls.Certificate{*id.Certificate()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestExchangeEndsWithItsContext(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := Join(ctx, JoinOptions{State: t.TempDir(), Server: c.address, Token: c.token(t, ""),
		Name: "b", Address: "192.0.2.2"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestCertificateNeverOutlivesTheCA(t *testing.T) {
	id := initNode(t, "a")
	authority := authorityOf(t, id)
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	late := authority.certificate.NotAfter.Add(-24 * time.Hour)
	peer := Peer{Name: "b", Number: 2}
	leaf, err := issue(authority.certificate, authority.key, key.Public(), peer, late, time.Time{})
	if err != nil || leaf.NotAfter.After(authority.certificate.NotAfter) {
		t.Errorf("valid until %v, %v", leaf.NotAfter, err)
	}
	late = late.Add(48 * time.Hour)
	_, err = issue(authority.certificate, authority.key, key.Public(), peer, late, time.Time{})
	if err == nil {
		t.Error("an expired CA issued a certificate")
	}
}
