package intake

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// conn is a connection from an address.
type conn struct {
	net.Conn
	from   string
	closed chan struct{}
}

func (c *conn) RemoteAddr() net.Addr { return address(c.from) }
func (c *conn) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return nil
}

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// source is a listener to which connections come from a channel.
type source struct {
	net.Listener
	conns chan net.Conn
}

func (s source) Accept() (net.Conn, error) {
	one, open := <-s.conns
	if !open {
		return nil, net.ErrClosed
	}
	return one, nil
}

// opened offers connections, and returns those that are accepted and those that are closed.
func opened(t *testing.T, c *Connections, from ...string) (accepted []*Connection, closed int) {
	t.Helper()
	s := source{conns: make(chan net.Conn, len(from))}
	var all []*conn
	for _, one := range from {
		all = append(all, &conn{from: one, closed: make(chan struct{})})
		s.conns <- all[len(all)-1]
	}
	close(s.conns)
	for {
		one, err := c.Listener(s).Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		accepted = append(accepted, one.(*Connection))
	}
	for _, one := range all {
		select {
		case <-one.closed:
			closed++
		default:
		}
	}
	return accepted, closed
}

func newConnections(limits Limits) *Connections {
	return NewConnections(limits, slog.New(slog.DiscardHandler))
}

// TestStrangers: neither one host nor all have more connections than the limits before they are known, and
// known callers do not count among them.
func TestStrangers(t *testing.T) {
	c := newConnections(Limits{Strangers: 4, StrangersPerHost: 2, Patience: time.Hour, Refusals: 3})
	a, closed := opened(t, c, "192.0.2.1:1", "192.0.2.1:2", "192.0.2.1:3", "[2001:db8::1]:1",
		"[2001:db8::2]:2", "[2001:db8::3]:3")
	if len(a) != 4 || closed != 2 {
		t.Fatalf("%d connections are accepted, %d closed", len(a), closed)
	}
	if more, closed := opened(t, c, "198.51.100.1:1"); len(more) != 0 || closed != 1 {
		t.Error("there are more strangers than the limit")
	}
	for range 2 { // a second time changes nothing
		if err := a[0].Known("user anna", 1); err != nil {
			t.Error(err)
		}
	}
	if err := a[1].Known("user anna", 1); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "user anna has 1 connections; the limit is 1") {
		t.Errorf("a second connection: %v", err)
	}
	if more, _ := opened(t, c, "192.0.2.1:4"); len(more) != 1 {
		t.Error("a known caller counts as a stranger")
	}
	for range 2 {
		if err := a[0].Close(); err != nil {
			t.Error(err)
		}
	}
	if err := a[1].Known("user anna", 1); err != nil {
		t.Errorf("a connection after the other has ended: %v", err)
	}
	for _, one := range a {
		one.Close()
	}
	if err := a[2].Known("user anna", 1); err != nil || len(c.callers) > 0 {
		t.Errorf("a closed connection counts: %v, %v", c.callers, err)
	}
	if c.strangers != 1 || len(c.hosts) != 1 {
		t.Errorf("%d strangers from %v", c.strangers, c.hosts)
	}
}

// TestPatience: a connection whose caller stays unknown is closed, and another is not.
func TestPatience(t *testing.T) {
	c := newConnections(Limits{Strangers: 4, StrangersPerHost: 4, Patience: 20 * time.Millisecond,
		Refusals: 3})
	all, _ := opened(t, c, "192.0.2.1:1", "192.0.2.1:2")
	if err := all[0].Known("node a", 1); err != nil {
		t.Fatal(err)
	}
	<-all[1].Conn.(*conn).closed
	all[0].expire() // as if it had been under way
	select {
	case <-all[0].Conn.(*conn).closed:
		t.Error("a known caller's connection is closed")
	default:
	}
}

// TestRefused: a connection whose calls are refused again and again is closed, unless one succeeds.
func TestRefused(t *testing.T) {
	c := newConnections(Limits{Strangers: 4, StrangersPerHost: 4, Patience: time.Hour, Refusals: 3})
	all, _ := opened(t, c, "192.0.2.1:1")
	one := all[0]
	for range 5 {
		for range 2 {
			if err := one.Refused(); err != nil {
				t.Fatal(err)
			}
		}
		if err := one.Known("node a", 1); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for range 4 {
		err = one.Refused()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "4 calls") {
		t.Errorf("answer %v", err)
	}
	<-one.Conn.(*conn).closed
}

// TestNotCounted: a connection that the listener has not counted is not served.
func TestNotCounted(t *testing.T) {
	made := Credentials(credentials.NewTLS(nil)).Clone()
	if _, _, err := made.ServerHandshake(&conn{from: "192.0.2.1:1"}); err == nil {
		t.Error("a connection that was not counted is served")
	}
	if _, found := From(t.Context()); found {
		t.Error("a call without a connection has one")
	}
}

func TestRates(t *testing.T) {
	now := time.Unix(1000, 0)
	r := NewRates(Rate{PerSecond: 2, Burst: 3}, func() time.Time { return now })
	for i := range 3 {
		if wait := r.Take("a"); wait != 0 {
			t.Fatalf("call %d waits for %v", i, wait)
		}
	}
	for range 10 { // refused calls cost nothing
		if wait := r.Take("a").Round(time.Millisecond); wait != 500*time.Millisecond {
			t.Fatalf("a call too many waits for %v", wait)
		}
	}
	if err := r.Allow("a"); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(),
		"a makes too many calls: the limit is 2 a second, and 3 at once; nothing was done; "+
			"try again in 500ms") {
		t.Errorf("answer %v", err)
	}
	if err := r.Allow("b"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	now = now.Add(500 * time.Millisecond)
	if wait := r.Take("a"); wait != 0 {
		t.Errorf("after the time it waits for %v", wait)
	}
	now = now.Add(-time.Hour) // a clock that was set back gives nothing, and takes nothing
	if wait := r.Take("a"); wait == 0 || wait > time.Second {
		t.Errorf("after the clock was set back it waits for %v", wait)
	}
	now = now.Add(24 * time.Hour)
	for i := range 3 * keptCallers {
		r.Take(fmt.Sprint(i))
		if i%keptCallers == 0 {
			now = now.Add(time.Hour)
		}
	}
	if len(r.callers) > keptCallers+1 {
		t.Errorf("%d callers are remembered", len(r.callers))
	}
}

func TestCalls(t *testing.T) {
	c := NewCalls(2)
	var ends []func()
	for range 2 {
		end, err := c.Begin("a")
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	if _, err := c.Begin("a"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a third call: %v", err)
	}
	if _, err := c.Begin("b"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	ends[0]()
	end, err := c.Begin("a")
	if err != nil {
		t.Fatalf("a call after another has ended: %v", err)
	}
	end()
	ends[1]()
	if len(c.under) != 1 {
		t.Errorf("calls of %v are under way", c.under)
	}
}
