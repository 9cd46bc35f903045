package agent

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/wire"
)

// earlyLasts is how long a connection that says nothing yet is of use: less than the target waits for what it is for.
const earlyLasts = 5 * time.Second

// connectEarly begins to connect to the target while the container is examined and the target is asked whether it takes it: on a
// long way that is two round trips less.
func (s *source) connectEarly() {
	early := make(chan *wire.Conn)
	s.early = early
	go func() {
		defer close(early)
		conn, err := wire.Dial(s.agent.ctx, s.agent.id, s.target.Address, s.target.Name)
		if err != nil {
			return // The next attempt says why, to somebody who wants to know.
		}
		timer := time.NewTimer(earlyLasts)
		defer timer.Stop()
		select {
		case early <- conn:
		case <-timer.C:
			_ = conn.Close()
		case <-s.move.done:
			_ = conn.Close()
		}
	}()
}

// connect makes a connection to the target, or takes the one that was made early.
func (s *source) connect(ctx context.Context) (*wire.Conn, error) {
	if early := s.early; early != nil {
		s.early = nil
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
