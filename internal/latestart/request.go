package latestart

import (
	"context"
	"errors"
	"sync"
)

// The sections, over the first data connection.
const (
	KindNear  = "near"  // to the target: the freeze is near, so its engine should start the container
	KindReady = "ready" // to the source: the engine has started the container
)

// Request asks the target to start the container; it is at the source.
type Request struct {
	mu    sync.Mutex
	ready chan struct{} // closed when the target's engine has started the container; nil: Send was not called
	heard bool          // ready is closed
}

// Send has the target's engine start the container.
func (r *Request) Send(tell func(kind string) error) error {
	r.mu.Lock()
	r.ready = make(chan struct{})
	r.mu.Unlock()
	return tell(KindNear)
}

// Await waits until the target's engine has started the container, if Send asked for that.
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

// Hear takes the target's answer. It fails if nothing was asked, or if the target answers twice.
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
