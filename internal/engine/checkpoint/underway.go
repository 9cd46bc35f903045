package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// Locks has a lock for each container, by ID.
type Locks struct {
	mu  sync.Mutex
	all map[string]chan struct{} // with one element while the lock is held
}

// Lock keeps other changes of a container away until the returned function is called.
func (l *Locks) Lock(id string) (unlock func()) {
	one := l.of(id)
	one <- struct{}{}
	return func() { <-one }
}

// LockBefore is Lock for a caller whose wait ends with ctx. A free lock is taken whether or not ctx has
// ended.
func (l *Locks) LockBefore(ctx context.Context, id string) (unlock func(), err error) {
	if unlock, free := l.TryLock(id); free {
		return unlock, nil
	}
	one := l.of(id)
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another change of %.12s to end: %w", id, ctx.Err())
	}
}

// TryLock is Lock if no other change of a container is under way.
func (l *Locks) TryLock(id string) (unlock func(), free bool) {
	one := l.of(id)
	select {
	case one <- struct{}{}:
		return func() { <-one }, true
	default:
		return nil, false
	}
}

func (l *Locks) of(id string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.all[id]
	if one == nil {
		if l.all == nil {
			l.all = map[string]chan struct{}{}
		}
		one = make(chan struct{}, 1)
		l.all[id] = one
	}
	return one
}

// Arrivals are the arrivals that this process has begun and that are not over, by the container's ID.
type Arrivals struct {
	mu  sync.Mutex
	all map[string]io.Closer
}

// Add adds an arrival.
func (a *Arrivals) Add(id string, one io.Closer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[string]io.Closer{}
	}
	a.all[id] = one
}

// Remove removes an arrival, unless the container has another one since.
func (a *Arrivals) Remove(id string, one io.Closer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all[id] == one {
		delete(a.all, id)
	}
}

// End closes a container's arrival that still waits. Its record, not the error, says what became of the
// arrival.
func (a *Arrivals) End(id string) {
	a.mu.Lock()
	one := a.all[id]
	a.mu.Unlock()
	if one != nil {
		_ = one.Close()
	}
}

// recordPatience is how long to wait for a restore proxy to end before it is killed.
const recordPatience = 2 * time.Second

// Ran reports, from the restore proxy's record, whether an arrival was resumed. If Ran says no, a restore
// proxy that exists now will not make a record.
func Ran(ctx context.Context, record string) (bool, error) {
	waiting, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	return criu.Ran(waiting, record)
}

// RemotePages connects to a container's pager by its socket.
func RemotePages(ctx context.Context, id, socket string) (memory.RemotePages, error) {
	remote, err := pager.DialRemote(ctx, socket)
	if errors.Is(err, pager.ErrNoPager) {
		err = engine.ErrNotFilling
	}
	if err != nil {
		return nil, fmt.Errorf("bring pages to container %.12s: %w", id, err)
	}
	return remote, nil
}
