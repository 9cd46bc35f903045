package agent

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// greet has one member greet another, and both hear what is said.
func greet(t *testing.T, from, to *member) {
	t.Helper()
	name, other := from.id.Node.Name, to.id.Node.Name
	request, err := from.helloRequest(other)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := to.answer(name, request)
	if err != nil {
		t.Fatal(err)
	}
	from.noteMember(other, reply)
	if err := from.hear(other, reply); err != nil {
		t.Fatal(err)
	}
}

// renewsAt has a member renew its certificate at another one, over a connection as agents make it.
func renewsAt(t *testing.T, m, at *member) {
	t.Helper()
	if m == at {
		if _, err := m.id.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	} else {
		server, err := identity.NewServer(at.id, at.list, nil)
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

// connects tells whether a member gets a data connection to another one.
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
	_, _ = conn.Read(make([]byte, 1)) // until it is accepted and closed, or refused
	select {
	case <-accepted:
		return true
	default:
		return false
	}
}

// TestRolloverByGreetings: news of a rollover travel with greetings, also of nodes that are told by others,
// and the node that began it ends it when all have renewed their certificates, or their time is over.
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
	var lost []string
	b.lost = func(node string) { lost = append(lost, node) }
	starter := &Agent{id: a.id, peers: a.peers, log: a.log}
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
	if err := starter.advanceRollover(time.Now()); err != nil {
		t.Fatal(err)
	}
	status := starter.rolloverStatus()
	if !status.UnderWay || !slices.Equal(status.Waiting, []string{"d"}) || len(status.Renewed) != 3 {
		t.Fatalf("d has not renewed its certificate: %+v", status)
	}
	if err := starter.advanceRollover(time.Now().Add(2 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if starter.rolloverStatus().UnderWay {
		t.Fatal("the rollover goes on after its time")
	}
	greet(t, a, b)
	if !slices.Equal(lost, []string{"d"}) || b.id.RolloverStatus().UnderWay {
		t.Errorf("b has lost %v", lost)
	}
	if !connects(t, a, b) || !connects(t, c, a) {
		t.Error("nodes that have renewed do not get to each other")
	}
	if connects(t, d, a) || connects(t, a, d) || connects(t, d, b) {
		t.Error("a node that did not come along gets to others")
	}
	if again := openMember(t, b.id, b.state); len(again.others()) != 2 {
		t.Errorf("after a restart b knows %v", again.others())
	}
}

// TestRolloverNeedsNodesThatCanFollow: a node of the previous release would be out at once.
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
	starter := &Agent{id: a.id, peers: a.peers, log: a.log, ctx: t.Context()}
	_, err := starter.rollOver(stopped(t), &api.RolloverRequest{})
	if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), ": b: upgrade") {
		t.Errorf("%v", err)
	}
	a.noteMember("b", &api.HelloReply{RollsOver: true})
	if old := a.cannotRollOver(); len(old) > 0 {
		t.Errorf("a node of this release: %v", old)
	}
}

func stopped(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
