package link

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"

	"github.com/godwit/godwit/internal/migration"
)

// closing is a connection that notes its end.
type closing struct {
	net.Conn
	closed chan struct{}
}

func (c *closing) Close() error {
	close(c.closed)
	return nil
}

// made are the connections that a test has made.
type made struct {
	conns chan *closing
	fails error
}

func (m *made) dial(context.Context) (net.Conn, error) {
	if m.fails != nil {
		return nil, m.fails
	}
	conn := &closing{closed: make(chan struct{})}
	m.conns <- conn
	return conn, nil
}

// TestEarly: each mode gets as many connections as it uses, and then makes its own.
func TestEarly(t *testing.T) {
	for mode, want := range map[migration.Mode]int{migration.Cold: 1, migration.PreCopy: 2} {
		m := &made{conns: make(chan *closing, 10)}
		e := Connect(t.Context(), m.dial, slog.New(slog.DiscardHandler))
		e.CompleteFor(mode)
		for range want {
			if conn, err := e.take(t.Context()); conn == nil || err != nil {
				t.Errorf("%s: %v, %v", mode, conn, err)
			}
		}
		if conn, err := e.take(t.Context()); conn != nil || err != nil {
			t.Errorf("%s: one more: %v, %v", mode, conn, err)
		}
		e.End()
	}
}

// TestEarlyEnds: connections that nobody takes are closed, at once when nobody wants them any more and after
// a while otherwise.
func TestEarlyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &made{conns: make(chan *closing, 10)}
		given := Connect(t.Context(), m.dial, slog.New(slog.DiscardHandler))
		given.End()
		<-(<-m.conns).closed
		old := Connect(t.Context(), m.dial, slog.New(slog.DiscardHandler))
		<-(<-m.conns).closed // the clock of the test goes on by itself
		old.CompleteFor(migration.Cold)
		if conn, err := old.take(t.Context()); conn != nil || err != nil {
			t.Errorf("a connection that is closed: %v, %v", conn, err)
		}
	})
}

// TestEarlyFails: a target that cannot be reached early is tried again when it counts. Who has no early
// connections waits for none, and who gives up waits no longer.
func TestEarlyFails(t *testing.T) {
	m := &made{fails: errors.New("no route")}
	e := Connect(t.Context(), m.dial, slog.New(slog.DiscardHandler))
	stopped, stop := context.WithCancelCause(t.Context())
	stop(m.fails)
	if _, err := e.take(stopped); !errors.Is(err, m.fails) {
		t.Errorf("it waits: %v", err)
	}
	e.CompleteFor(migration.Cold)
	if conn, err := e.take(t.Context()); conn != nil || err != nil {
		t.Errorf("%v, %v", conn, err)
	}
	var none *Early
	none.End()
	if conn, err := none.take(t.Context()); conn != nil || err != nil {
		t.Errorf("without: %v, %v", conn, err)
	}
}
