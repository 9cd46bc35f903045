package link

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
)

// Dial connects to the target of a migration.
type Dial func(ctx context.Context) (net.Conn, error)

// earlyLasts is how long a connection that says nothing yet is of use: less than the target waits
// for what it is for.
const earlyLasts = 5 * time.Second

// Early are connections to the target that are made while its mode is chosen, the container is
// examined and the target is asked whether it takes it: on a long way that is two round trips less
// for each connection.
type Early struct {
	log   *slog.Logger
	conns chan net.Conn // closed when no more come
	more  func()        // makes another one
	all   sync.WaitGroup
	end   func() // nobody wants them any more
}

// Connect begins to make the first one.
func Connect(ctx context.Context, dial Dial, log *slog.Logger) *Early {
	wanted, end := context.WithCancel(ctx)
	e := &Early{log: log, conns: make(chan net.Conn), end: end}
	e.more = func() {
		e.all.Go(guard.Logged(log, func() {
			// or the next attempt says why, to somebody who wants to know
			if conn, err := dial(wanted); err == nil {
				e.offer(wanted, conn)
			}
		}))
	}
	e.more()
	return e
}

// CompleteFor makes all that the mode uses.
func (e *Early) CompleteFor(mode migration.Mode) {
	if mode.MemoryAhead() { // files have one of their own
		e.more()
	}
	go guard.Logged(e.log, func() {
		e.all.Wait()
		close(e.conns)
	})()
}

// End says that nobody wants them any more. Of a nil Early there are none.
func (e *Early) End() {
	if e != nil {
		e.end()
	}
}

// offer keeps one for whoever wants it first.
func (e *Early) offer(wanted context.Context, conn net.Conn) {
	timer := time.NewTimer(earlyLasts)
	defer timer.Stop()
	select {
	case e.conns <- conn:
		return
	case <-timer.C:
	case <-wanted.Done():
	}
	_ = conn.Close()
}

// take takes one of the connections that were made early; nil: there are no more.
func (e *Early) take(ctx context.Context) (net.Conn, error) {
	if e == nil {
		return nil, nil //nolint:nilnil // The caller makes one.
	}
	select {
	case conn := <-e.conns:
		return conn, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
