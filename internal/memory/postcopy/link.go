package postcopy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Session is the part of a data connection that this package needs; a *stream.Session is one.
type Session interface {
	Begin(kind, name string) error
	Write(p []byte) (int, error)
	End() error
	Push() error
	Flush() error
	Finish() error
	Next() (stream.Section, error)
	Abort(reason string) error
	Close() error
}

// section writes a complete section. It leaves with the next Push or Flush.
func section(s Session, kind string, data []byte) error {
	if err := s.Begin(kind, ""); err != nil {
		return err
	}
	if _, err := s.Write(data); err != nil {
		return err
	}
	return s.End()
}

// lastWords is how long a peer that has closed one connection may take to give the reason on the other.
const lastWords = 200 * time.Millisecond

// together runs parts concurrently over two connections, which it owns, until all have ended. The first
// error ends the others, by closing the connections. The peer is told any reason except a broken
// connection. A reason from the peer is better than the error of a broken connection.
func together(ctx context.Context, urgent, push Session, parts ...func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	said, ended, closed := make(chan error, len(parts)), make(chan struct{}), make(chan struct{})
	context.AfterFunc(inner, func() {
		defer close(closed)
		if why := context.Cause(inner); ctx.Err() == nil && !ours(why) {
			listen(said, ended)
		}
		hangUp(urgent, push, context.Cause(inner))
	})
	var running sync.WaitGroup
	for _, part := range parts {
		running.Go(func() {
			err := guard.Do(func() error { return part(inner) })
			var peer *stream.PeerError
			if errors.As(err, &peer) {
				said <- err
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	close(ended)
	why := context.Cause(inner)
	cancel(nil)
	<-closed
	if ours(why) {
		return why
	}
	select {
	case reason := <-said:
		return reason
	default:
		return why
	}
}

// listen waits for the peer's reason; others may take it afterwards.
func listen(said chan error, ended <-chan struct{}) {
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case reason := <-said:
		said <- reason
	case <-ended:
	case <-timer.C:
	}
}

// ours reports whether this side could not continue.
func ours(err error) bool {
	return errors.Is(err, ErrPeer) || errors.Is(err, ErrSource) || errors.Is(err, ErrTarget) ||
		errors.Is(err, ErrStale)
}

// hangUp closes both connections. The reason is sent on the urgent one, where nothing is queued before it;
// so the peer learns it before it notices that the other connection is closed.
func hangUp(urgent, push Session, why error) {
	if ours(why) {
		_ = urgent.Abort(why.Error()) // it is being given up
	}
	_ = urgent.Close() // never fails
	_ = push.Close()
}

// during adds to an error what was in progress when a connection broke.
func during(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
