package latestart

import (
	"context"
	"errors"
	"sync"
)

// The sections, over the first data connection.
const (
	KindNear  = "near"  // the freeze is: the engine is to start the container, if it does that late
	KindReady = "ready" // the other way: it has
)

// Request asks the target to start the container; it is at the source.
type Request struct {
	mu    sync.Mutex
	ready chan struct{} // closed when the target's engine has started the container; nil: it was not asked
	heard bool          // that it has
}

// Send has the target's engine start the container.
func (r *Request) Send(tell func(kind string) error) error {
	r.mu.Lock()
	r.ready = make(chan struct{})
	r.mu.Unlock()
	return tell(KindNear)
}

// Await waits until it has, if it was asked.
func (r *Request) Await(ctx context.Context) error {
	r.mu.Lock()
	ready := r.ready
	r.mu.Unlock()
	if ready == nil {
		return nil
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Hear takes what the target says of that.
func (r *Request) Hear() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready == nil || r.heard {
		return errors.New("the target reported that it is ready, without a request")
	}
	r.heard = true
	close(r.ready)
	return nil
}
