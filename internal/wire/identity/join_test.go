package identity

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestJoinMakesANode(t *testing.T) {
	c := newCluster(t)
	b, d := c.mustJoin(t, "b"), c.mustJoin(t, "d")
	if b.Node != (Node{Name: "b", Number: 2, Address: "192.0.2.2:7000", Revision: 1}) || d.Node.Number != 3 {
		t.Errorf("joined as %+v and %+v", b.Node, d.Node)
	}
	if b.Pool != pool() || b.Fingerprint() != c.first.Fingerprint() {
		t.Error("the new node has another pool or CA")
	}
	if peer, err := PeerOf(b.Certificate().Leaf); err != nil || peer != (Peer{Name: "b", Number: 2}) {
		t.Errorf("certificate is of %+v, %v", peer, err)
	}
	nodes, err := LoadNodes(filepath.Dir(d.dir))
	if err != nil || len(nodes) != 3 {
		t.Errorf("the third node knows %v, %v", nodes, err)
	}
	if _, err := b.Authority(); !errors.Is(err, ErrNotAuthority) {
		t.Errorf("a node that joined has a CA: %v", err)
	}
	checkPrivate(t, filepath.Dir(c.first.dir))
	checkPrivate(t, filepath.Dir(b.dir))
}

// checkPrivate makes sure that nobody else can read what is below a directory.
func checkPrivate(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTokenIsUsedOnce(t *testing.T) {
	c := newCluster(t)
	token := c.token(t, "")
	if _, err := c.join(t, token, "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.join(t, token, "d"); !errors.Is(err, ErrTokenUsed) {
		t.Errorf("second use: %v", err)
	}
	for range 2 {
		if err := <-c.served; err != nil && !errors.Is(err, ErrTokenUsed) {
			t.Errorf("server: %v", err)
		}
	}
}

func TestTokenIsUsedOnceByManyAtOnce(t *testing.T) {
	c := newCluster(t)
	token, err := ParseToken(c.token(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	other := authorityOf(t, c.first) // as another process would have it
	var group sync.WaitGroup
	results := make(chan error, 8)
	for i := range 8 {
		group.Go(func() {
			key, err := newKey()
			if err == nil {
				authority := []*Authority{c.authority, other}[i%2]
				_, _, err = authority.admit(token.secret[:], fmt.Sprint("n", i), key.Public(), nil)
			}
			results <- err
		})
	}
	group.Wait()
	admitted := 0
	for range 8 {
		switch err := <-results; {
		case err == nil:
			admitted++
		case !errors.Is(err, ErrTokenUsed):
			t.Error(err)
		}
	}
	if admitted != 1 {
		t.Errorf("%d nodes were admitted with one token", admitted)
	}
}

func TestRefusedTokens(t *testing.T) {
	c := newCluster(t)
	foreign := c.token(t, "")
	parsed, _ := ParseToken(foreign)
	parsed.secret[0] ^= 1
	forOther := c.token(t, "x")
	expired := c.token(t, "")
	c.authority.now = func() time.Time { return time.Now().Add(-time.Hour) }
	old := c.token(t, "")
	c.authority.now = time.Now
	strange := initNode(t, "z")
	strangeToken, err := authorityOf(t, strange).IssueToken(0, "")
	if err != nil {
		t.Fatal(err)
	}
	_ = expired
	for _, check := range []struct {
		what, token string
		want        error
	}{
		{"wrong secret", parsed.String(), ErrTokenUnknown},
		{"expired", old, ErrTokenExpired},
		{"for another node", forOther, ErrTokenUnknown},
		{"of another cluster", strangeToken.String(), ErrWrongCluster},
	} {
		if _, err := c.join(t, check.token, "b"); !errors.Is(err, check.want) {
			t.Errorf("%s: %v", check.what, err)
		}
	}
	if id := c.mustJoin(t, "b"); id.Node.Number != 2 {
		t.Errorf("refused nodes used up numbers: the first admitted got %d", id.Node.Number)
	}
}

func TestTokenSurvivesARestartAndARefusal(t *testing.T) {
	c := newCluster(t)
	c.mustJoin(t, "b")
	token := c.token(t, "")
	if _, err := c.join(t, token, "b"); !errors.Is(err, ErrNameTaken) {
		t.Errorf("name taken: %v", err)
	}
	c.authority = authorityOf(t, c.first)
	if _, err := c.join(t, token, "d"); err != nil {
		t.Errorf("the token was spent on a refusal: %v", err)
	}
}

func TestRejoinKeepsTheNumber(t *testing.T) {
	c := newCluster(t)
	c.mustJoin(t, "b")
	c.mustJoin(t, "d")
	again, err := c.join(t, c.token(t, "b"), "b")
	if err != nil {
		t.Fatal(err)
	}
	if again.Node.Number != 2 || again.Node.Revision != 2 {
		t.Errorf("joined again as %+v", again.Node)
	}
}

func TestNumbersEnd(t *testing.T) {
	c := newCluster(t)
	if err := c.authority.change(
		func(s *authorityState) error { s.LastNumber = MaxNumber - 1; return nil }); err != nil {
		t.Fatal(err)
	}
	if id := c.mustJoin(t, "last"); id.Node.Number != MaxNumber {
		t.Errorf("got number %d", id.Node.Number)
	}
	if _, err := c.join(t, c.token(t, ""), "more"); !errors.Is(err, ErrClusterFull) {
		t.Errorf("got %v", err)
	}
}

func TestClockSkewIsNamed(t *testing.T) {
	c := newCluster(t)
	token := c.token(t, "")
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		c.authority.now = func() time.Time { return time.Now().Add(skew) }
		if _, err := c.join(t, token, "b"); !errors.Is(err, ErrClockSkew) ||
			!strings.Contains(err.Error(), "1h0m") {
			t.Errorf("skew %s: %v", skew, err)
		}
	}
	// The joiner's clock is years ahead of the server's certificate.
	state := tls.ConnectionState{NegotiatedProtocol: JoinProtocol}
	state.PeerCertificates = append(state.PeerCertificates, chainOf(t, c.first)...)
	_, err := verifyServer(state, c.first.Fingerprint(), time.Now().Add(2*nodeLifetime))
	if !errors.Is(err, ErrClockSkew) {
		t.Errorf("two years ahead: %v", err)
	}
}

// TestSecretStaysWithoutProof: a server that cannot prove that it has the token's CA must not see the secret.
func TestSecretStaysWithoutProof(t *testing.T) {
	c, impostor := newCluster(t), initNode(t, "evil")
	token := c.token(t, "")
	forged := *impostor.Certificate()
	// It shows the true CA beside its own leaf.
	forged.Certificate = [][]byte{forged.Certificate[0], c.first.trust.Load().base.Raw}
	for what, certificate := range map[string]*tls.Certificate{"own CA": impostor.Certificate(),
		"true CA": &forged} {
		listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*certificate},
			NextProtos: []string{JoinProtocol},
		})
		if err != nil {
			t.Fatal(err)
		}
		received := make(chan int, 1)
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				received <- -1
				return
			}
			defer conn.Close()
			data, _ := io.ReadAll(conn)
			received <- len(data)
		}()
		_, _, err = Join(testContext(t),
			JoinOptions{State: t.TempDir(), Server: listener.Addr().String(), Token: token,
				Name: "b", Address: "192.0.2.2"})
		if !errors.Is(err, ErrWrongCluster) {
			t.Errorf("%s: %v", what, err)
		}
		if n := <-received; n != 0 {
			t.Errorf("%s: the impostor received %d bytes", what, n)
		}
		listener.Close()
	}
}

func TestJoinAtANodeWithoutTheCA(t *testing.T) {
	c := newCluster(t)
	b := c.mustJoin(t, "b")
	server, err := NewServer(b, func() []Node { return []Node{c.first.Node, b.Node} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	address, _ := serve(t, server, b, b.Certificate())
	_, _, err = Join(testContext(t), JoinOptions{State: t.TempDir(), Server: address, Token: c.token(t, ""),
		Name: "d", Address: "192.0.2.3"})
	if !errors.Is(err, ErrNotAuthority) || !strings.Contains(err.Error(), c.first.Node.Address) {
		t.Errorf("got %v", err)
	}
}

func TestBadJoinRequestsAreRefused(t *testing.T) {
	c := newCluster(t)
	server := &Server{identity: c.first, authority: c.first.Authority, nodes: func() []Node { return nil }}
	token, _ := ParseToken(c.token(t, ""))
	_, csr, err := newRequest()
	if err != nil {
		t.Fatal(err)
	}
	good := joinRequest{Secret: token.secret[:], Name: "b", Address: "192.0.2.2:7443", Request: csr,
		Time: time.Now()}
	for what, spoil := range map[string]func(*joinRequest){
		"name":            func(r *joinRequest) { r.Name = "../a" },
		"address":         func(r *joinRequest) { r.Address = "0.0.0.0:1" },
		"signing request": func(r *joinRequest) { r.Request = r.Request[:len(r.Request)-5] },
		"no request":      func(r *joinRequest) { r.Request = nil },
		"no secret":       func(r *joinRequest) { r.Secret = nil },
	} {
		bad := good
		spoil(&bad)
		if _, _, err := server.join(bad); err == nil {
			t.Errorf("%s: admitted", what)
		}
	}
	if _, _, err := server.join(good); err != nil {
		t.Errorf("a good request after bad ones: %v", err)
	}
}

func TestJoinExchangeIsBounded(t *testing.T) {
	c := newCluster(t)
	server := &Server{identity: c.first, authority: c.first.Authority, nodes: func() []Node { return nil }}
	for what, bytes := range map[string][]byte{
		"giant":     {0xff, 0xff, 0xff, 0xff},
		"truncated": {0, 0, 1, 0, '{'},
		"garbage":   append([]byte{0, 0, 0, 4}, "HTTP"...),
	} {
		client, end := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- server.ServeJoin(end) }()
		if _, err := client.Write(bytes); err != nil && what == "truncated" {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, client) }()
		if what == "truncated" {
			client.Close()
		}
		if err := <-done; err == nil {
			t.Errorf("%s: no error", what)
		}
		client.Close()
	}
}

func TestLongListOfNodesIsCut(t *testing.T) {
	var nodes []Node
	for i := range MaxNumber {
		name := fmt.Sprintf("n%d-%s", i+1, strings.Repeat("x", 50))
		nodes = append(nodes, Node{Name: name, Number: i + 1, Address: strings.Repeat("h", 240) + ":7443",
			Revision: 1, Certificate: strings.Repeat("A", 8<<10)})
	}
	client, end := net.Pipe()
	go func() {
		defer end.Close()
		_ = (&Server{}).send(end, certificateReply{Certificate: []byte{1}, Number: 9, Nodes: nodes})
	}()
	var reply certificateReply
	if err := readUpTo(client, &reply, maxReplyBytes); err != nil || len(reply.Nodes) != 2 ||
		len(nodes) != MaxNumber {
		t.Errorf("%d nodes, %v", len(reply.Nodes), err)
	}
}

func TestJoinChangesNothingIfItCannotWork(t *testing.T) {
	c := newCluster(t)
	token := c.token(t, "")
	state := filepath.Dir(c.first.dir) // has an identity already
	options := JoinOptions{State: state, Server: c.address, Token: token, Name: "b", Address: "192.0.2.2"}
	if _, _, err := Join(testContext(t), options); !errors.Is(err, ErrExists) {
		t.Errorf("over an identity: %v", err)
	}
	options.State = filepath.Join(state, "nodes.json", "below-a-file")
	if _, _, err := Join(testContext(t), options); err == nil {
		t.Error("joined into a directory that cannot be")
	}
	if _, err := os.Stat(filepath.Join(state, "identity", "ca", "ca.pem")); err != nil {
		t.Error(err)
	}
	if _, err := c.join(t, token, "b"); err != nil {
		t.Errorf("the token was spent: %v", err)
	}
}
