package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// connect opens a data connection from one node to another and returns both ends.
func connect(t testing.TB, from, to *testNode) (*Conn, *Conn) {
	t.Helper()
	out, err := Dial(testContext(t), from.id, to.address(), to.id.Node.Name)
	if err != nil {
		t.Fatal(err)
	}
	in, err := to.listener.AcceptData(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close(); in.Close() })
	return out, in
}

func TestDataConnectionKnowsBothEnds(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	out, in := connect(t, b, a)
	if out.Peer() != (identity.Peer{Name: "a", Number: 1}) ||
		in.Peer() != (identity.Peer{Name: "b", Number: 2}) {
		t.Errorf("peers are %+v and %+v", out.Peer(), in.Peer())
	}
	payload := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	go func() {
		_, _ = out.Write(payload)
		out.Close()
	}()
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, payload) {
		t.Errorf("%d of %d bytes arrived, %v", len(got), len(payload), err)
	}
	transport, err := in.Transport()
	if err != nil || transport.WindowBytes == 0 {
		t.Errorf("transport: %+v, %v", transport, err)
	}
}

func TestStreamOverAConnection(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	out, in := connect(t, b, a)
	answered := make(chan *stream.Session, 1)
	go func() {
		session, _, err := stream.Answer(testContext(t), in, func(stream.Hello) error { return nil },
			stream.Options{})
		if err != nil {
			t.Error(err)
		}
		answered <- session
	}()
	session, err := stream.Open(testContext(t), out, stream.Hello{Purpose: "test"},
		stream.Options{Codec: stream.S2})
	if err != nil {
		t.Fatal(err)
	}
	peer := <-answered
	received := make(chan int64, 1)
	go func() {
		next, err := peer.Next()
		if err != nil {
			received <- -1
			return
		}
		n, _ := io.Copy(io.Discard, next)
		received <- n
	}()
	link, err := session.Warm(testContext(t), stream.Budget{})
	if err != nil || link.WindowBytes == 0 || link.BandwidthBitsPerSecond == 0 {
		t.Errorf("%+v, %v", link, err)
	}
	t.Logf("%+v", link)
	if err := session.Begin("pages", ""); err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if _, err := session.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(session.End(), session.Finish()); err != nil {
		t.Fatal(err)
	}
	if n := <-received; n != 64<<20 {
		t.Errorf("%d bytes arrived", n)
	}
}

func TestWrongPeersAreRefused(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	stranger := firstNode(t, "a", nil) // another cluster
	for what, dial := range map[string]func() error{
		"another name":    func() error { return dialError(t, b.id, a.address(), "c") },
		"another cluster": func() error { return dialError(t, b.id, stranger.address(), "a") },
	} {
		if err := dial(); !errors.Is(err, ErrWrongPeer) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := dialError(t, b.id, a.address(), ""); err == nil {
		t.Error("no expected name was accepted")
	}
	nothingAccepted(t, a)
}

func dialError(t testing.TB, id *identity.Identity, address, expected string) error {
	t.Helper()
	conn, err := Dial(testContext(t), id, address, expected)
	if err == nil {
		conn.Close()
	}
	return err
}

// nothingAccepted makes sure that no connection came through to the node.
func nothingAccepted(t testing.TB, n *testNode) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if conn, err := n.listener.AcceptData(ctx); err == nil {
		t.Errorf("a connection of %q came through", conn.Peer())
	}
	select {
	case conn := <-n.listener.control.conns:
		t.Errorf("a control connection of %q came through", conn.Peer())
	default:
	}
}

// TestNothingWithoutACertificate tries every protocol with every kind of wrong certificate. The peer
// must not get a single byte after the handshake.
func TestNothingWithoutACertificate(t *testing.T) {
	a := firstNode(t, "a", nil)
	stranger := firstNode(t, "b", nil)
	name := func(c *x509.Certificate) { c.URIs = nil }
	certificates := map[string][]tls.Certificate{
		"none":       nil,
		"another CA": {*stranger.id.Certificate()},
		"expired": {a.forge(t,
			func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })},
		"not yet valid": {a.forge(t,
			func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })},
		"no node":    {a.forge(t, name)},
		"bad number": {a.forge(t, func(c *x509.Certificate) { c.URIs[0].RawQuery = "number=0" })},
		"two names":  {a.forge(t, func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "x") })},
		"other use":  {a.forge(t, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] })},
	}
	for what, shown := range certificates {
		for _, protocol := range []string{controlProtocol, dataProtocol, identity.RenewProtocol, ""} {
			tryCertificate(t, a, what, protocol, shown)
		}
	}
	nothingAccepted(t, a)
	await.True(t, "every refusal is logged", func() bool { return len(a.logged()) >= len(certificates)*4 })
}

// rootsOf holds the authority of a node's certificate.
func rootsOf(t *testing.T, id *identity.Identity) *x509.CertPool {
	t.Helper()
	authority, err := x509.ParseCertificate(id.Certificate().Certificate[1])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	return pool
}

func tryCertificate(t *testing.T, a *testNode, what, protocol string, shown []tls.Certificate) {
	t.Helper()
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: rootsOf(t, a.id), ServerName: identity.ServerName("a"),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(shown) == 0 {
				return &tls.Certificate{}, nil
			}
			return &shown[0], nil
		},
	}
	if protocol != "" {
		config.NextProtos = []string{protocol}
	}
	conn, err := tls.Dial("tcp", a.address(), config)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s, protocol %q: read %d bytes, %v", what, protocol, n, err)
	}
}

func TestNoOlderTLSAndNoUnknownProtocol(t *testing.T) {
	a := firstNode(t, "a", nil)
	for what, config := range map[string]*tls.Config{
		"TLS 1.2":       {MaxVersion: tls.VersionTLS12, NextProtos: []string{controlProtocol}},
		"http/1.1":      {NextProtos: []string{"http/1.1"}},
		"join and data": {NextProtos: []string{identity.JoinProtocol, dataProtocol}},
	} {
		config.RootCAs, config.ServerName = rootsOf(t, a.id), identity.ServerName("a")
		conn, err := tls.Dial("tcp", a.address(), config)
		if err != nil {
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s was served", what)
		}
		conn.Close()
	}
	nothingAccepted(t, a)
}

// TestExpiredServerIsNamed checks that the dialling end reports an expired certificate as the reason.
func TestExpiredServerIsNamed(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	b.id = b.replaceIdentity(t,
		a.forge(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }))
	b.listen(t, nil)
	if err := dialError(t, a.id, b.address(), "b"); err == nil || !strings.Contains(err.Error(), "clock") {
		t.Errorf("got %v", err)
	}
}

func TestGarbageAndScansDoNotHarm(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	for _, garbage := range [][]byte{nil, []byte("GET / HTTP/1.1\r\n\r\n"),
		bytes.Repeat([]byte{0xff}, 100_000), {22, 3, 1, 0xff, 0xff}} {
		conn, err := net.Dial("tcp", a.address())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(garbage)
		conn.Close()
	}
	connect(t, b, a)
}

// TestSlowHandshakesKeepNobodyOut checks that peers that connect and send nothing are limited, logged and
// disconnected.
func TestSlowHandshakesKeepNobodyOut(t *testing.T) {
	a := firstNode(t, "a", func(o *ListenOptions) {
		o.MaxHandshakes, o.MaxHandshakesPerHost, o.Handshake = 4,
			3, patience.Limit{Still: 10 * time.Second, Most: 10 * time.Second}
	})
	b := a.join(t, "b")
	await.True(t, "the join's place is free again", func() bool { return a.listener.gate.size() == 0 })
	var slow []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", a.address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		slow = append(slow, conn)
	}
	await.True(t, "three handshakes are under way", func() bool { return a.listener.gate.size() == 3 })
	if err := dialError(t, b.id, a.address(), "a"); err == nil {
		t.Fatal("a fourth handshake from one host was allowed")
	}
	// Another host still comes through.
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	tcp, err := dialer.Dial("tcp", a.address())
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	if _, err := secure(testContext(t), tcp.(*net.TCPConn), b.id, "a", dataProtocol, nil); err != nil {
		t.Errorf("another host was kept out: %v", err)
	}
	for _, conn := range slow {
		conn.Close()
	}
	await.True(t, "places are free again", func() bool { return a.listener.gate.size() == 0 })
}

func TestHandshakeHasADeadline(t *testing.T) {
	a := firstNode(t, "a",
		func(o *ListenOptions) {
			o.Handshake = patience.Limit{Still: 50 * time.Millisecond,
				Most: time.Minute}
		})
	conn, err := net.Dial("tcp", a.address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); errors.Is(err, context.DeadlineExceeded) || err == nil {
		t.Errorf("a peer that says nothing is kept: %v", err)
	}
	await.True(t, "it is logged", func() bool { return len(a.logged()) == 1 })
}

func TestControlConnections(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	callers := make(chan identity.Peer, 8)
	options := append(ServerOptions(),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
			next grpc.UnaryHandler) (any, error) {
			peer, ok := PeerFrom(ctx)
			if !ok {
				return nil, errors.New("who is it?")
			}
			callers <- peer
			return next(ctx, request)
		}))
	server := grpc.NewServer(options...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(a.listener.Control()) }()
	t.Cleanup(server.Stop)

	call := func(expected string) error {
		client, err := DialControl(b.id, a.address(), expected, nil)
		if err != nil {
			return err
		}
		defer client.Close()
		_, err = healthpb.NewHealthClient(client).Check(testContext(t), &healthpb.HealthCheckRequest{})
		return err
	}
	if err := call("a"); err != nil {
		t.Fatal(err)
	}
	if peer := <-callers; peer.Name != "b" || peer.Number != 2 {
		t.Errorf("the call came from %+v", peer)
	}
	if err := call("b"); err == nil || !strings.Contains(err.Error(), ErrWrongPeer.Error()) {
		t.Errorf("a call to node b reached node a: %v", err)
	}
	if _, ok := PeerFrom(context.Background()); ok {
		t.Error("a context without a call has a peer")
	}
}

func TestRenewal(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	before := b.id.Certificate()
	conn, err := DialRenew(testContext(t), b.id, a.address(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := b.id.Renew(testContext(t), conn); err != nil {
		t.Fatal(err)
	}
	if b.id.Certificate() == before {
		t.Error("the certificate is the old one")
	}
	connect(t, b, a)
	connect(t, a, b)
}

func TestCloseEndsEverythingUnderWay(t *testing.T) {
	a := firstNode(t, "a", nil)
	conn, err := net.Dial("tcp", a.address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await.True(t, "the handshake is under way", func() bool { return a.listener.gate.size() == 1 })
	accepted := make(chan error, 2)
	go func() { _, err := a.listener.AcceptData(context.Background()); accepted <- err }()
	go func() { _, err := a.listener.Control().Accept(); accepted <- err }()
	a.listener.Close()
	for range 2 {
		if err := <-accepted; !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
}

func TestCloseReleasesABlockedWrite(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	out, _ := connect(t, b, a) // nobody reads
	written := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			_, err = out.Write(make([]byte, 1<<20))
		}
		written <- err
	}()
	await.True(t, "a write is under way", func() bool {
		if !out.mu.TryLock() {
			return true
		}
		out.mu.Unlock()
		return false
	})
	out.Close()
	select {
	case <-written:
	case <-time.After(10 * time.Second):
		t.Fatal("the write is still blocked")
	}
}

func TestSysctls(t *testing.T) {
	all, err := Sysctls()
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, s := range all {
		if s.Is == "" || s.Why == "" {
			t.Errorf("%+v", s)
		}
	}
}

// TestPoliteStream sends over a real connection with a session that paces itself, and changes its limit
// meanwhile.
func TestPoliteStream(t *testing.T) {
	a := firstNode(t, "a", nil)
	b := a.join(t, "b")
	out, in := connect(t, b, a)
	answered := make(chan *stream.Session, 1)
	go func() {
		session, _, err := stream.Answer(testContext(t), in, func(stream.Hello) error { return nil },
			stream.Options{})
		if err != nil {
			t.Error(err)
		}
		answered <- session
	}()
	sender, err := stream.Open(testContext(t), out, stream.Hello{},
		stream.Options{Polite: true, ExpectedBitsPerSecond: 200e6})
	if err != nil {
		t.Fatal(err)
	}
	receiver := <-answered
	defer sender.Close()
	defer receiver.Close()
	if receiver.Pace() != 0 || receiver.Batch() != 0 {
		t.Errorf("a session that is not polite has a pace of %f and a batch of %d", receiver.Pace(),
			receiver.Batch())
	}
	payload := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	sent := make(chan error, 1)
	go func() { sent <- sendPolitely(sender, payload) }()
	next, err := receiver.Next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(next)
	if err != nil || !bytes.Equal(got, payload) {
		t.Errorf("%d of %d bytes arrived, %v", len(got), len(payload), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	sender.SetRate(8e6)
	if pace, batch := sender.Pace(), sender.Batch(); pace <= 0 || pace > 8e6 || batch <= 0 || batch > 8<<10 {
		t.Errorf("with a limit of 8 Mbit/s the pace is %f and the batch %d", pace, batch)
	}
}

// sendPolitely sends a section in batches, with a limit for a while.
func sendPolitely(s *stream.Session, payload []byte) error {
	if err := s.Begin("pages", ""); err != nil {
		return err
	}
	for rest := payload; len(rest) > 0; {
		if half := len(rest) < len(payload)/2; half && len(rest) > len(payload)/4 {
			s.SetRate(100e6)
		} else if half {
			s.SetRate(0)
		}
		n := min(s.Batch(), len(rest))
		if _, err := s.Write(rest[:n]); err != nil {
			return err
		}
		if err := s.Flush(); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return errors.Join(s.End(), s.Finish())
}
