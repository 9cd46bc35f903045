package cluster

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// greet sends a hello from one member to another, and both take the other's news.
func greet(t *testing.T, from, to *member) {
	t.Helper()
	name, other := from.id.Node.Name, to.id.Node.Name
	request, err := from.helloRequest(other)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := to.Answer(name, request)
	if err != nil {
		t.Fatal(err)
	}
	from.noteMember(other, reply)
	if err := from.hear(other, reply); err != nil {
		t.Fatal(err)
	}
}

// answering is the server of a member, as another member reaches it.
type answering struct {
	api.UnimplementedPeerServer
	from string
	at   *member
	// lies makes it claim the authority, until it hears of a rollover.
	lies bool
	took bool // the authority's key, or tried to
}

func (s *answering) Hello(_ context.Context, request *api.HelloRequest) (*api.HelloReply, error) {
	reply, err := s.at.Answer(s.from, request)
	if err == nil && s.lies {
		reply.Authority = !s.at.id.RolloverStatus().UnderWay
	}
	return reply, err
}

func (s *answering) TakeAuthority(_ context.Context,
	request *api.TakeAuthorityRequest) (*api.TakeAuthorityReply, error) {
	s.took = true
	return &api.TakeAuthorityReply{}, s.at.id.TakeAuthority(request.HandoverJson)
}

// link connects one member to another, until it is cut.
func link(t *testing.T, from, to *member) (server *answering, cut func()) {
	t.Helper()
	server = &answering{from: from.id.Node.Name, at: to}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving := grpc.NewServer()
	api.RegisterPeerServer(serving, server)
	go func() { _ = serving.Serve(listener) }()
	t.Cleanup(serving.Stop)
	client, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	node, err := from.Find(to.id.Node.Name)
	if err != nil {
		t.Fatal(err)
	}
	from.known[node.Name] = &peer{client: client, heard: &atomic.Int64{}, address: node.Address}
	from.timeout = time.Minute
	return server, serving.Stop
}

func membersOf(m *member) *Members {
	return NewMembers(m.Peers, func() []migration.Spec { return nil })
}

// renewsAt renews a member's certificate at another member, over a connection as agents make it.
func renewsAt(t *testing.T, m, at *member) {
	t.Helper()
	if m == at {
		if _, err := m.id.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	} else {
		server, err := identity.NewServer(at.id, at.List, nil)
		if err != nil {
			t.Fatal(err)
		}
		options := wire.ListenOptions{Identity: at.id, Server: server}
		listener, err := wire.Listen(t.Context(), "127.0.0.1:0", options)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		conn, err := wire.DialRenew(t.Context(), m.id, listener.Addr().String(), at.id.Node.Name)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := m.id.Renew(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.sign(); err != nil {
		t.Fatal(err)
	}
}

// connects reports whether a member gets a data connection to another one.
func connects(t *testing.T, from, to *member) bool {
	t.Helper()
	listener, err := wire.Listen(t.Context(), "127.0.0.1:0", wire.ListenOptions{Identity: to.id})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := listener.AcceptData(ctx); err == nil {
			accepted <- conn
			conn.Close()
		}
		close(accepted)
	}()
	conn, err := wire.Dial(t.Context(), from.id, listener.Addr().String(), to.id.Node.Name)
	if err != nil {
		return false
	}
	defer conn.Close()
	_, _ = conn.Read(make([]byte, 1)) // until the other side accepts and closes, or refuses
	select {
	case <-accepted:
		return true
	default:
		return false
	}
}

// TestRolloverByGreetings: news of a rollover travel with greetings, also about nodes that others report.
// The node that began the rollover ends it when all have renewed their certificates, or their time is over.
func TestRolloverByGreetings(t *testing.T) {
	all := newMembers(t, "a", "b", "c", "d")
	a, b, c, d := all[0], all[1], all[2], all[3]
	for _, m := range all {
		for _, other := range all {
			m.known[other.id.Node.Name] = &peer{}
		}
	}
	for range 2 {
		for _, pair := range [][2]*member{{a, b}, {b, c}, {c, d}, {d, a}} {
			greet(t, pair[0], pair[1])
		}
	}
	starter := membersOf(a)
	if err := a.id.BeginRollover(time.Hour, true, false); err != nil {
		t.Fatal(err)
	}
	renewsAt(t, a, a)
	greet(t, a, b)
	greet(t, b, c)
	if c.id.Current() || c.id.Fingerprint() != a.id.Fingerprint() {
		t.Error("c has not heard of the rollover from b")
	}
	for _, m := range all {
		for _, other := range all {
			if m != other && !connects(t, m, other) {
				t.Errorf("%s does not get to %s during the rollover", m.id.Node.Name, other.id.Node.Name)
			}
		}
	}
	renewsAt(t, b, a)
	renewsAt(t, c, a)
	greet(t, b, a)
	greet(t, c, a)
	link(t, a, b)
	if err := starter.advanceRollover(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	status := starter.RolloverStatus()
	if !status.UnderWay || !slices.Equal(status.Waiting, []string{"d"}) || len(status.Renewed) != 3 {
		t.Fatalf("d has not renewed its certificate: %+v", status)
	}
	if err := starter.advanceRollover(t.Context(), time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if starter.RolloverStatus().UnderWay {
		t.Fatal("the rollover goes on after its time")
	}
	greet(t, a, b)
	if !slices.Equal(b.left, []string{"d"}) || b.id.RolloverStatus().UnderWay {
		t.Errorf("b has lost %v", b.left)
	}
	if !connects(t, a, b) || !connects(t, c, a) {
		t.Error("nodes that have renewed do not get to each other")
	}
	if connects(t, d, a) || connects(t, a, d) || connects(t, d, b) {
		t.Error("a node that did not come along gets to others")
	}
	if again := openMember(t, b.id, b.state); len(again.Others()) != 2 {
		t.Errorf("after a restart b knows %v", again.Others())
	}
}

// TestRolloverNeedsNodesThatCanFollow: a node of the previous release would lose its membership at once.
func TestRolloverNeedsNodesThatCanFollow(t *testing.T) {
	a := newMembers(t, "a", "b")[0]
	a.known["b"] = &peer{}
	if old := a.cannotRollOver(); len(old) > 0 {
		t.Errorf("a node that was not heard of yet: %v", old)
	}
	a.known["b"].version = "0.1.0"
	a.noteMember("b", &api.HelloReply{})
	if old := a.cannotRollOver(); !slices.Equal(old, []string{"b"}) {
		t.Errorf("a node of the previous release: %v", old)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := membersOf(a).RollOver(ended, &api.RolloverRequest{})
	if !errors.Is(err, api.ErrRefused) || !strings.Contains(err.Error(), ": b: upgrade") {
		t.Errorf("%v", err)
	}
	a.noteMember("b", &api.HelloReply{RollsOver: true})
	if old := a.cannotRollOver(); len(old) > 0 {
		t.Errorf("a node of this release: %v", old)
	}
}

// TestRolloverGivesNobodyTheKey: a member that claims the authority is listed, and does not get the new
// key.
func TestRolloverGivesNobodyTheKey(t *testing.T) {
	for _, now := range []bool{false, true} {
		all := newMembers(t, "a", "b", "c")
		a, b, c := all[0], all[1], all[2]
		toB, _ := link(t, a, b)
		toC, _ := link(t, a, c)
		toB.lies = true
		reply, err := membersOf(a).RollOver(t.Context(), &api.RolloverRequest{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		if toB.took || toC.took || b.id.HasAuthority() || c.id.HasAuthority() {
			t.Errorf("now %t: the new key was given away", now)
		}
		if !slices.Equal(reply.NotPromoted, []string{"b"}) || len(reply.NotReached) > 0 {
			t.Errorf("now %t: %+v", now, reply)
		}
	}
}

// TestRolloverEndsAmongOthersOnly: a node that began a rollover and was off does not end it before it has
// learnt whether another rollover supersedes it.
func TestRolloverEndsAmongOthersOnly(t *testing.T) {
	all := newMembers(t, "a", "b", "c")
	a, b, c := all[0], all[1], all[2]
	handover, err := a.id.HandOver(identity.Peer{Name: "b", Number: 2})
	if err == nil {
		err = b.id.TakeAuthority(handover)
	}
	if err == nil {
		err = a.id.BeginRollover(time.Hour, false, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	renewsAt(t, a, a)
	greet(t, b, c)
	greet(t, a, b)
	if err := b.id.BeginRollover(time.Hour, false, true); err != nil {
		t.Fatal(err)
	}
	starter, later := membersOf(a), time.Now().Add(2*time.Hour)
	_, cut := link(t, a, b)
	cut()
	if err := starter.advanceRollover(t.Context(), later); err != nil || !a.id.RolloverStatus().UnderWay {
		t.Fatalf("a has ended its rollover, and reaches nobody: %v", err)
	}
	link(t, a, b)
	if err := starter.advanceRollover(t.Context(), later); err != nil || !a.id.RolloverStatus().UnderWay {
		t.Fatalf("a has ended the rollover that lost: %v", err)
	}
	if a.id.Fingerprint() != b.id.Fingerprint() {
		t.Error("a has not heard of the other rollover")
	}
	if _, err := starter.RollOver(t.Context(), &api.RolloverRequest{Finish: true}); err == nil {
		t.Error("a has ended a rollover without its key")
	}
	link(t, b, a)
	_, cut = link(t, b, c)
	cut()
	reply, err := membersOf(b).RollOver(t.Context(), &api.RolloverRequest{Finish: true})
	if err != nil || reply.UnderWay || !slices.Equal(reply.NotReached, []string{"c"}) {
		t.Errorf("%+v, %v", reply, err)
	}
}
