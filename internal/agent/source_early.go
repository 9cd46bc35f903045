package agent

import (
	"context"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/wire"
)

// earlyLasts is how long a connection that says nothing yet is of use: less than the target waits for what it is for.
const earlyLasts = 5 * time.Second

// connectEarly begins to connect to the target while the container is examined and the target is asked whether it takes it: on a
// long way that is two round trips less for each connection.
func (s *source) connectEarly() {
	connections := 1
	if s.move.tracker.spec.Mode.MemoryAhead() {
		connections = 2 // files have one of their own
	}
	early := make(chan *wire.Conn)
	s.mu.Lock()
	s.early = early
	s.mu.Unlock()
	var all sync.WaitGroup
	for range connections {
		all.Go(func() { s.offerEarly(early) })
	}
	go func() {
		all.Wait()
		close(early)
	}()
}

// offerEarly makes one, and keeps it for whoever wants it first.
func (s *source) offerEarly(early chan<- *wire.Conn) {
	conn, err := wire.Dial(s.agent.ctx, s.agent.id, s.target.Address, s.target.Name)
	if err != nil {
		return // The next attempt says why, to somebody who wants to know.
	}
	timer := time.NewTimer(earlyLasts)
	defer timer.Stop()
	select {
	case early <- conn:
		return
	case <-timer.C:
	case <-s.move.done:
	}
	_ = conn.Close()
}

// connect takes one of the connections that were made early, or makes one.
func (s *source) connect(ctx context.Context) (*wire.Conn, error) {
	s.mu.Lock()
	early := s.early
	s.mu.Unlock()
	if early != nil { // closed when there is none any more
		select {
		case conn, ok := <-early:
			if ok {
				return conn, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return wire.Dial(ctx, s.agent.id, s.target.Address, s.target.Name)
}
