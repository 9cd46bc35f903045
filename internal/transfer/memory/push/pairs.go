package push

import (
	"context"
	"errors"
	"sync"

	"github.com/godwit/godwit/internal/wire/stream"
)

// pairs is where the two connections come together over which pages follow that stayed at the
// source. When they broke the source opens two new ones, which take the place of the old.
type pairs struct {
	mu   sync.Mutex
	pair *pair // nil: none has come
}

// pair are two connections that belong together.
type pair struct {
	name     string                     // by the source
	sessions map[string]*stream.Session // by purpose
	once     sync.Once
	ended    chan struct{}
	err      error
	stop     context.CancelFunc // of what uses it; nil: nothing does yet
}

// join puts a connection to the one that it belongs to. The second makes the pair complete. A
// connection that the source has given up may come after those of its next try: it must not take
// the place of one of these.
func (d *pairs) join(ctx context.Context, hello stream.Hello, session *stream.Session) (*pair,
	context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pair == nil || d.pair.name != hello.Pair || d.pair.sessions[hello.Purpose] != nil {
		d.replace(hello.Pair)
	}
	d.pair.sessions[hello.Purpose] = session
	if len(d.pair.sessions) < 2 {
		return d.pair, nil
	}
	ctx, d.pair.stop = context.WithCancel(ctx)
	return d.pair, ctx
}

// replace begins a new pair. The caller holds the lock.
func (d *pairs) replace(name string) {
	if d.pair != nil {
		d.pair.end(errReplaced)
	}
	d.pair = &pair{name: name, sessions: map[string]*stream.Session{}, ended: make(chan struct{})}
}

var (
	errReplaced = errors.New("the source has opened another connection in its place")
	errNotHere  = errors.New("the container no longer comes to this node")
)

// connected reports whether both connections stand, as far as is known.
func (d *pairs) connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pair == nil || len(d.pair.sessions) < 2 {
		return false
	}
	select {
	case <-d.pair.ended:
		return false
	default:
		return true
	}
}

// close ends the use of the connections, and all who wait for them.
func (d *pairs) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pair != nil {
		d.pair.end(errNotHere)
		d.pair = nil
	}
}

// end is for when nobody uses the pair any more.
func (p *pair) end(err error) {
	p.once.Do(func() {
		p.err = err
		if p.stop != nil {
			p.stop()
		}
		for _, session := range p.sessions {
			_ = session.Close() // nothing is under way that matters
		}
		close(p.ended)
	})
}
