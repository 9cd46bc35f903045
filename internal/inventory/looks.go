package inventory

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
)

// Looks are what the agent looks at again and again, and what may have to wait for an engine that hangs.
// Each has a name, and there is at most one look of a name at a time: so a hung engine delays nothing but
// the looks at itself, and holds no more than one of each.
type Looks struct {
	patience time.Duration // for how long others wait for a look; 0: lookPatience

	mu       sync.Mutex
	underWay map[string]chan struct{} // closed at its end
	all      sync.WaitGroup
}

// Look looks, unless a look of that name goes on, and waits for its end for a moment. One that has begun
// before may not have seen what this one is for, so there is another when it ends.
func (l *Looks) Look(name string, do func()) {
	patience, cancel := context.WithTimeout(context.Background(), cmp.Or(l.patience, lookPatience))
	defer cancel()
	for began := false; !began; {
		var over chan struct{}
		over, began = l.begin(name, do)
		select {
		case <-over:
		case <-patience.Done():
			return
		}
	}
}

func (l *Looks) begin(name string, do func()) (over chan struct{}, began bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if over, is := l.underWay[name]; is {
		return over, false
	}
	if l.underWay == nil {
		l.underWay = map[string]chan struct{}{}
	}
	over = make(chan struct{})
	l.underWay[name] = over
	l.all.Go(func() {
		defer l.end(name)
		_ = guard.Do(func() error { // callers log a panic
			do()
			return nil
		})
	})
	return over, true
}

func (l *Looks) end(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.underWay[name])
	delete(l.underWay, name)
}

// Wait returns when no look goes on.
func (l *Looks) Wait() { l.all.Wait() }
