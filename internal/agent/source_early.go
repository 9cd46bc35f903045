package agent

import (
	"context"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// earlyLasts is how long a connection that says nothing yet is of use: less than the target waits
// for what it is for.
const earlyLasts = 5 * time.Second

// earlyConns are connections to the target that are made while its mode is chosen, the container is
// examined and the target is asked whether it takes it: on a long way that is two round trips less
// for each connection.
type earlyConns struct {
	agent *Agent
	conns chan *wire.Conn // closed when no more come
	more  func()          // makes another one
	all   sync.WaitGroup
	end   func() // nobody wants them any more
}

// connectEarly begins to make the first one.
func (a *Agent) connectEarly(node identity.Node) *earlyConns {
	wanted, end := context.WithCancel(a.ctx)
	e := &earlyConns{agent: a, conns: make(chan *wire.Conn), end: end}
	e.more = func() {
		e.all.Go(a.guarded(func() {
			// or the next attempt says why, to somebody who wants to know
			if conn, err := wire.Dial(wanted, a.id, node.Address, node.Name); err == nil {
				e.offer(wanted, conn)
			}
		}))
	}
	e.more()
	return e
}

// completeFor makes all that the mode uses.
func (e *earlyConns) completeFor(mode migration.Mode) {
	if mode.MemoryAhead() { // files have one of their own
		e.more()
	}
	go e.agent.guarded(func() {
		e.all.Wait()
		close(e.conns)
	})()
}

// offer keeps one for whoever wants it first.
func (e *earlyConns) offer(wanted context.Context, conn *wire.Conn) {
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

// connect takes one of the connections that were made early, or makes one.
func (s *source) connect(ctx context.Context) (*wire.Conn, error) {
	if s.early != nil {
		select {
		case conn, ok := <-s.early.conns:
			if ok {
				return conn, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return wire.Dial(ctx, s.agent.id, s.target.Address, s.target.Name)
}
