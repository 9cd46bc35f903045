package inventory

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// Config of Lists.
type Config struct {
	Engines *engine.Set
	// Own is the node's own engine, which is asked each time: it cannot hang.
	Own engine.Engine
	// Watched is the engine that tells of changes; nil: there is none.
	Watched engine.Engine
	// Routed are those whose containers have addresses of the pool, beside the node's own.
	Routed []engine.Engine
	Every  time.Duration // the interval of greetings
}

// Lists are the containers of this node as its engines have listed them.
type Lists struct {
	config Config
	// all are the containers of this node, withAddress those that have addresses of the pool, and watched
	// those of the engine that tells of changes, if it is watching.
	all, withAddress, watched *list
	watching                  atomic.Bool
	// an engine's containers are not among all because its first look has not ended
	unheard atomic.Bool

	// guards others; a migration that ends locks it, so its holder calls nothing
	othersMu sync.Mutex
	others   map[string]*list // those of other engines, by name
}

// New asks no engine yet.
func New(config Config) *Lists {
	l := &Lists{config: config, others: map[string]*list{}}
	l.all = &list{every: config.Every, ask: l.listTold}
	l.withAddress = &list{every: config.Every, ask: func(ctx context.Context) ([]engine.Container, error) {
		return l.addressedBy(ctx, l.told)
	}}
	l.watched = &list{
		every: config.Every, hasty: true,
		ask: func(ctx context.Context) ([]engine.Container, error) {
			return config.Engines.Ask(ctx, config.Watched)
		},
		age: func() time.Duration {
			if l.watching.Load() {
				return watchedAges * config.Every
			}
			return 0
		},
	}
	return l
}

// All lists the containers of this node. The slice must not be changed.
func (l *Lists) All(ctx context.Context) ([]engine.Container, error) { return l.all.get(ctx) }

// WithAddresses lists those whose engines give them addresses of the pool. The slice must not be changed.
func (l *Lists) WithAddresses(ctx context.Context) ([]engine.Container, error) {
	return l.withAddress.get(ctx)
}

// Running are the containers that run here, by Short. The map must not be changed.
func (l *Lists) Running(ctx context.Context) (map[uint64]*engine.Definition, error) {
	return l.all.claims(ctx)
}

// Unheard reports whether an engine was not heard yet since the agent was started.
func (l *Lists) Unheard() bool { return l.unheard.Load() }

// Addressed asks now for the containers that WithAddresses lists. That one of these engines does not answer
// is an error: an address that may be taken is not free.
func (l *Lists) Addressed(ctx context.Context) ([]engine.Container, error) {
	return l.addressedBy(ctx, func(ctx context.Context, of engine.Engine) ([]engine.Container, error) {
		return of.List(ctx)
	})
}

// addressedBy is Addressed with another way to list an engine's containers than to ask it.
func (l *Lists) addressedBy(ctx context.Context, list engine.ListFunc) ([]engine.Container, error) {
	containers, err := list(ctx, l.config.Own)
	for _, one := range l.config.Routed {
		found, failed := list(ctx, one)
		if errors.Is(failed, engine.ErrAway) {
			failed = nil // what is not there gives no addresses
		}
		containers, err = append(containers, found...), errors.Join(err, failed)
	}
	return containers, err
}

// told lists the containers of an engine as it has told of them, for greetings: nobody waits for one that
// hangs. The node's own engine cannot, and the one that tells of changes is not asked again before there
// are any.
func (l *Lists) told(ctx context.Context, of engine.Engine) ([]engine.Container, error) {
	if of == l.config.Own {
		return l.config.Engines.Ask(ctx, of)
	}
	return l.toldBy(of).get(ctx)
}

// listTold lists the containers of all engines as told does.
func (l *Lists) listTold(ctx context.Context) ([]engine.Container, error) {
	var unheard atomic.Bool
	all, err := l.config.Engines.ListAnsweredBy(ctx,
		func(ctx context.Context, of engine.Engine) ([]engine.Container, error) {
			found, err := l.told(ctx, of)
			if errors.Is(err, errUnheard) {
				unheard.Store(true)
			}
			return found, err
		})
	l.unheard.Store(unheard.Load())
	return all, err
}

// Hangs reports whether an engine has not answered when it was asked for its list last.
func (l *Lists) Hangs(of engine.Engine) bool {
	if of == l.config.Own {
		return false
	}
	one := l.toldBy(of)
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.late
}

// Ended reports whether it is known that a container does not run here, of which no list says that it does.
func (l *Lists) Ended(definition engine.Definition) bool {
	of := l.config.Engines.EngineFor(definition)
	return of == l.config.Own || l.toldBy(of).lacks(definition.ID)
}

// RunsYet reports whether a container ran here when its engine was last heard, and its first process still
// runs.
func (l *Lists) RunsYet(of engine.Engine, container string) bool {
	return of != l.config.Own &&
		slices.ContainsFunc(l.toldBy(of).runningYet(), func(one engine.Container) bool {
			return one.Definition.ID == container
		})
}

func (l *Lists) toldBy(of engine.Engine) *list {
	if of == l.config.Watched {
		return l.watched
	}
	l.othersMu.Lock()
	defer l.othersMu.Unlock()
	one := l.others[of.Name()]
	if one == nil {
		ask := func(ctx context.Context) ([]engine.Container, error) { return l.config.Engines.Ask(ctx, of) }
		one = &list{ask: ask, every: l.config.Every, age: func() time.Duration { return 0 }, hasty: true}
		l.others[of.Name()] = one
	}
	return one
}

// SetWatching notes whether the engine that can tell of changes does so from now on.
func (l *Lists) SetWatching(is bool) {
	l.watching.Store(is)
	l.Changed(l.config.Watched)
}

// Changed makes the next look ask an engine for its containers again. What other engines have told stays:
// one of them may hang.
func (l *Lists) Changed(of engine.Engine) {
	if of != l.config.Own { // which is asked each time
		l.toldBy(of).changed() // before those lists that are made from it
	}
	l.all.changed()
	l.withAddress.changed()
}
