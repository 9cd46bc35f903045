package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
)

// inventory is one look at the containers of this node, shared by all greetings of an interval: what
// an idle agent costs must not grow with the number of peers times containers. It is for knowledge that
// is exchanged again and again; whatever is decided about a container asks its engine.
type inventory struct {
	list func(ctx context.Context) ([]engine.Container, error)
	age  func() time.Duration // for how long a look is good; nil: helloEvery
	// hasty: nobody waits for longer than lookPatience, and then not again before a look has ended well. What
	// was known before is told instead, for oldAge, unless something has changed since; and then, with an
	// error, what still runs of it.
	hasty    bool
	patience time.Duration // 0: lookPatience

	mu         sync.Mutex
	generation int       // counts the changes
	valid      bool      // nothing has changed since the last look that ended well
	taken      time.Time // of that look
	ticks      uint64    // likewise, since boot
	containers []engine.Container
	err        error                         // of the last look
	running    map[uint64]*engine.Definition // of these, by claimOf; nil: nobody has asked
	underWay   *inventoryLook                // nil: none is
	late       bool                          // the last look that somebody waited for has taken too long
	heard      bool                          // a look has ended, well or not
}

// inventoryLook is a look that is under way, or has ended: then done is closed.
type inventoryLook struct {
	generation int // before it began
	began      time.Time
	ticks      uint64 // since boot; 0: not known
	done       chan struct{}
	containers []engine.Container
	err        error
}

// lookPatience is how long a greeting waits for an engine, and what is done for all engines for one of them.
const lookPatience = 500 * time.Millisecond

// watchedAge is for how long a list of an engine's containers is good while that engine tells of changes.
// It may forget to: Docker drops events that nobody takes, and begins to send them a moment after it says so.
const watchedAge = 10 * cluster.HelloEvery

// oldAge is for how long the list of an engine is told that does not answer.
const oldAge = 10 * cluster.HelloEvery

// errHangs is why nobody knows what containers an engine has.
var errHangs = errors.New("it has not answered yet")

// errUnheard is errHangs of an engine whose first look has not ended.
var errUnheard = fmt.Errorf("%w since the agent was started", errHangs)

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
	for again := true; ; again = false {
		i.mu.Lock()
		if i.valid && time.Since(i.taken) < i.goodFor() {
			defer i.mu.Unlock()
			return i.containers, nil
		}
		look := i.look(ctx)
		i.mu.Unlock()
		if !i.await(look) {
			return i.old()
		}
		i.mu.Lock()
		unchanged := i.generation == look.generation
		i.mu.Unlock()
		switch {
		case look.err != nil && i.hasty:
			return i.runningYet(), look.err
		case unchanged || !again:
			return look.containers, look.err
		}
	}
}

// look begins to look, unless somebody does so already. There is one look at a time. The caller has locked
// mu.
func (i *inventory) look(ctx context.Context) *inventoryLook {
	if i.underWay != nil {
		return i.underWay
	}
	look := &inventoryLook{generation: i.generation, began: time.Now(), done: make(chan struct{})}
	look.ticks, _ = kernel.Ticks()
	i.underWay = look
	guard.Go(func() error {
		look.err = guard.Do(func() (err error) {
			look.containers, err = i.list(ctx)
			return err
		})
		i.mu.Lock()
		defer i.mu.Unlock()
		i.underWay, i.err, i.heard = nil, look.err, true
		i.late = i.late && look.err != nil && !errors.Is(look.err, engine.ErrAway)
		if look.err == nil {
			i.valid = i.generation == look.generation
			i.containers, i.taken, i.ticks, i.running = look.containers, look.began, look.ticks, nil
		}
		close(look.done)
		return nil
	})
	return look
}

// await returns when a look has ended; false: that takes too long for a greeting.
func (i *inventory) await(look *inventoryLook) bool {
	if !i.hasty {
		<-look.done
		return true
	}
	i.mu.Lock()
	patience := time.Until(look.began.Add(cmp.Or(i.patience, lookPatience)))
	if i.late {
		patience = 0
	}
	i.mu.Unlock()
	select {
	case <-look.done:
		return true
	case <-time.After(patience):
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.late = i.late || i.underWay == look
	return false
}

// old is what was known before a look that takes too long.
func (i *inventory) old() ([]engine.Container, error) {
	i.mu.Lock()
	is := i.valid && time.Since(i.taken) < oldAge
	containers, heard := i.containers, i.heard
	i.mu.Unlock()
	switch {
	case is:
		return containers, nil
	case !heard:
		return nil, errUnheard
	}
	return i.runningYet(), errHangs
}

// runningYet are those containers that ran at the last look that ended well, and of which the first process
// still runs: that needs no answer of their engine.
func (i *inventory) runningYet() (running []engine.Container) {
	i.mu.Lock()
	containers, ticks := i.containers, i.ticks
	i.mu.Unlock()
	for _, one := range containers {
		if one.State != engine.Running || one.PID <= 0 {
			continue
		}
		if process, err := kernel.ReadProcess(one.PID); err == nil && process.RanAt(ticks) {
			running = append(running, one)
		}
	}
	return running
}

// lacks reports whether the engine has answered, when it was asked last or not long ago, that it does not
// run a container. One that is away runs none of those whose first processes have ended. A container of
// which nothing is known may run.
func (i *inventory) lacks(container string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	slow := i.late && !(i.valid && time.Since(i.taken) < oldAge)
	if slow || i.err != nil && !errors.Is(i.err, engine.ErrAway) {
		return false
	}
	return i.err != nil || !slices.ContainsFunc(i.containers, func(one engine.Container) bool {
		return one.Definition.ID == container && (one.State == engine.Running || one.State == engine.Damaged)
	})
}

func (i *inventory) goodFor() time.Duration {
	if i.age == nil {
		return cluster.HelloEvery
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

// told lists the containers of an engine as it has told of them, for greetings: nobody waits for one that
// hangs. The node's own engine cannot, and the one that tells of changes is not asked again before there
// are any.
func (l *locations) told(ctx context.Context, of engine.Engine) ([]engine.Container, error) {
	if of == engine.Engine(l.agent.embedded) {
		return l.agent.engines.Ask(ctx, of)
	}
	return l.toldBy(of).get(ctx)
}

// listTold lists the containers of all engines as told does.
func (l *locations) listTold(ctx context.Context) ([]engine.Container, error) {
	var unheard atomic.Bool
	all, err := l.agent.engines.ListAnsweredBy(ctx,
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

// hangs tells whether an engine has not answered when it was asked for its list last.
func (l *locations) hangs(of engine.Engine) bool {
	if of == engine.Engine(l.agent.embedded) {
		return false
	}
	one := l.toldBy(of)
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.late
}

// ended reports whether it is known that a container does not run here, of which no list says that it does.
func (l *locations) ended(definition engine.Definition) bool {
	of := l.agent.engines.EngineFor(definition)
	return of == engine.Engine(l.agent.embedded) || l.toldBy(of).lacks(definition.ID)
}

// runsYet reports whether a container ran here when its engine was last heard, and its first process still
// runs.
func (l *locations) runsYet(of engine.Engine, container string) bool {
	return of != engine.Engine(l.agent.embedded) &&
		slices.ContainsFunc(l.toldBy(of).runningYet(), func(one engine.Container) bool {
			return one.Definition.ID == container
		})
}

func (l *locations) toldBy(of engine.Engine) *inventory {
	if of == engine.Engine(l.agent.watched) {
		return l.watched
	}
	l.othersMu.Lock()
	defer l.othersMu.Unlock()
	one := l.others[of.Name()]
	if one == nil {
		list := func(ctx context.Context) ([]engine.Container, error) { return l.agent.engines.Ask(ctx, of) }
		one = &inventory{list: list, age: func() time.Duration { return 0 }, hasty: true}
		l.others[of.Name()] = one
	}
	return one
}

// setWatching notes whether the engine that can tell of changes does so from now on.
func (l *locations) setWatching(is bool) {
	l.watching.Store(is)
	l.agent.containersChanged(l.agent.watched)
}

// containersChanged makes the next look ask an engine for its containers again. What other engines have
// told stays: one of them may hang.
func (a *Agent) containersChanged(of engine.Engine) {
	if of != engine.Engine(a.embedded) { // which is asked each time
		a.locations.toldBy(of).changed() // before those lists that are made from it
	}
	a.locations.all.changed()
	a.locations.withAddress.changed()
}

// noticing is the option of the local server: a user's call that is audited may have changed containers of
// the node's own engine. One that only looks has not, and may come many times a second.
func (a *Agent) noticing() grpc.ServerOption {
	changes := access.Audited()
	return grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler) (any, error) {
		if changes[path.Base(info.FullMethod)] {
			defer a.containersChanged(a.embedded)
		}
		return handle(ctx, request)
	})
}
