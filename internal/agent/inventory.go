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
	age  func() time.Duration // for how long a look is good; nil: helloEvery

	looking sync.Mutex // one look at a time; the others wait for its result

	mu         sync.Mutex
	generation int // counts the changes
	taken      time.Time
	valid      bool
	containers []engine.Container
	running    map[uint64]*engine.Definition // of these, by claimOf; nil: nobody has asked
	err        error
}

// watchedAge is for how long a list of an engine's containers is good while that engine tells of changes.
// It may forget to: Docker drops events that nobody takes, and begins to send them a moment after it says so.
const watchedAge = 10 * helloEvery

// changed has the next caller look again: a migration has ended here, or a user has made a call that
// may have started or ended something. A look that began before is not used.
func (i *inventory) changed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.generation++
	i.valid = false
}

// get returns the containers as they were at most an age ago, and after the last change; if changes do not
// end, as they were after the call. The slice must not be changed.
func (i *inventory) get(ctx context.Context) ([]engine.Container, error) {
	i.looking.Lock()
	defer i.looking.Unlock()
	for again := true; ; again = false {
		i.mu.Lock()
		if i.valid && time.Since(i.taken) < i.goodFor() {
			defer i.mu.Unlock()
			return i.containers, i.err
		}
		generation, taken := i.generation, time.Now()
		i.mu.Unlock()

		containers, err := i.list(ctx)

		i.mu.Lock()
		unchanged := i.generation == generation
		if unchanged {
			i.containers, i.err, i.taken, i.valid, i.running = containers, err, taken, err == nil, nil
		}
		i.mu.Unlock()
		if unchanged || !again {
			return containers, err
		}
	}
}

func (i *inventory) goodFor() time.Duration {
	if i.age == nil {
		return helloEvery
	}
	return i.age()
}

// claims are the running containers among those that get returns, by claimOf. The map must not be changed.
func (i *inventory) claims(ctx context.Context) (map[uint64]*engine.Definition, error) {
	containers, err := i.get(ctx)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running == nil || !i.valid {
		i.running = runningOf(containers)
	}
	return i.running, nil
}

func runningOf(containers []engine.Container) map[uint64]*engine.Definition {
	running := map[uint64]*engine.Definition{}
	for i := range containers {
		one := &containers[i]
		if short, is := claimOf(one.Definition.ID); is && one.State == engine.Running {
			running[short] = &one.Definition
		}
	}
	return running
}

// listWatched lists the containers of an engine. While that engine tells of changes, it is not asked again
// before there are any.
func (l *locations) listWatched(ctx context.Context, of engine.Engine) ([]engine.Container, error) {
	if of == engine.Engine(l.agent.watched) {
		return l.watched.get(ctx)
	}
	return of.List(ctx)
}

// setWatching notes whether the engine that can tell of changes does so from now on.
func (l *locations) setWatching(is bool) {
	l.watching.Store(is)
	l.agent.containersChanged()
}

// containersChanged has what this node tells and hears of containers be looked at anew.
func (a *Agent) containersChanged() {
	a.locations.watched.changed() // before those lists that are made from this one
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
