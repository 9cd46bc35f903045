package agent

import (
	"context"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/engine"
)

// inventory is one look at the containers of this node, shared by all greetings of an interval: what
// an idle agent costs must not grow with the number of peers times containers. It is for knowledge that
// is exchanged again and again; whatever is decided about a container asks its engine.
type inventory struct {
	list func(ctx context.Context) ([]engine.Container, error)

	looking sync.Mutex // one look at a time; the others wait for its result

	mu         sync.Mutex
	generation int // counts the changes
	taken      time.Time
	valid      bool
	containers []engine.Container
	err        error
}

// changed has the next caller look again: a migration has ended here, or a user has made a call that
// may have started or ended something. A look that began before is not used.
func (i *inventory) changed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.generation++
	i.valid = false
}

// get returns the containers as they were at most helloEvery ago, and after the last change; if changes do not end, as
// they were after the call. The slice must not be changed.
func (i *inventory) get(ctx context.Context) ([]engine.Container, error) {
	i.looking.Lock()
	defer i.looking.Unlock()
	for again := true; ; again = false {
		i.mu.Lock()
		if i.valid && time.Since(i.taken) < helloEvery {
			defer i.mu.Unlock()
			return i.containers, i.err
		}
		generation, taken := i.generation, time.Now()
		i.mu.Unlock()

		containers, err := i.list(ctx)

		i.mu.Lock()
		unchanged := i.generation == generation
		if unchanged {
			i.containers, i.err, i.taken, i.valid = containers, err, taken, err == nil
		}
		i.mu.Unlock()
		if unchanged || !again {
			return containers, err
		}
	}
}

// containersChanged has what this node tells and hears of containers be looked at anew.
func (a *Agent) containersChanged() {
	a.locations.all.changed()
	a.locations.withAddress.changed()
}

// noticing is the option of the local server: a user's call that is audited may have changed what there is. One that
// only looks has not, and may come many times a second.
func (a *Agent) noticing() grpc.ServerOption {
	changes := audited()
	return grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler) (any, error) {
		if changes[path.Base(info.FullMethod)] {
			defer a.containersChanged()
		}
		return handle(ctx, request)
	})
}
