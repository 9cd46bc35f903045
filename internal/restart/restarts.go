package restart

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/network"
)

const (
	restartEvery = time.Second
	// After a failure a container is started again later, and later still after each failure that
	// follows at once.
	firstBackoff, lastBackoff = 100 * time.Millisecond, time.Minute
	// askAgainEvery is how often other nodes are asked again for a container that one of them has, or
	// may have.
	askAgainEvery = 5 * time.Second
	// restartsAtOnce bounds how many containers are started at once, and startPatience how long one
	// may take.
	restartsAtOnce = 4
	startPatience  = 2 * time.Minute
)

// Restarts starts containers of the embedded engine again as their policies say, after they have ended
// or the machine was booted.
//
// There must never be two copies. So a container is started only where it was last, and only if all of
// this holds:
//   - No migration here has to do with it, and all journals could be read (mayStart).
//   - The engine's records, which outlive a reboot, say that it has not left, that the source of its
//     last migration has confirmed that it gave the container away, and that this state of the node is
//     the one in which that was recorded (embedded.Standing).
//   - No other member of the cluster has it. Members that do not answer do not matter if this agent has
//     itself seen the container run here. Otherwise the state's word is all there is, and the state may
//     have been put back to an older one, which a reboot hides: then all members must have answered
//     (location.Members).
type Restarts struct {
	ctx        context.Context //nolint:containedctx // The life of the node.
	engine     Engine
	migrations Migrations
	// members are the other members of the cluster, which are asked for a container that has ended.
	members location.Members
	prepare embedded.Prepare
	changed func()
	log     *slog.Logger
	again   func(ctx context.Context, d engine.Definition) error // starts a container that is due
	slots   chan struct{}

	mu    sync.Mutex
	known map[string]*followed // by container
}

// followed is a container with a policy. All times are by the monotonic clock.
type followed struct {
	seen     bool      // this agent has seen it run here, and no migration of it since
	starting bool      // it is being started
	due      time.Time // when it is to be started; zero: that is not decided yet
	failed   error     // the last start
	// starts in a row that failed; the engine counts only those that were the container's failures
	refused int
}

// Config is what Restarts need of their node.
type Config struct {
	Engine     Engine
	Migrations Migrations
	// Members are the other members of the cluster.
	Members location.Members
	// Prepare makes what a container that is about to start needs of this node, or refuses the start.
	Prepare embedded.Prepare
	// Changed is called when a container has been started again.
	Changed func()
	Log     *slog.Logger
}

// Engine is the node's own. See embedded.Engine.
type Engine interface {
	Restartable() ([]string, error)
	Inspect(ctx context.Context, reference string) (engine.Container, error)
	Standing(of engine.Container) (embedded.Standing, error)
	Restart(ctx context.Context, id string, prepare embedded.Prepare) error
	StartAfter(ctx context.Context, id string, prepare embedded.Prepare) error
}

// Migrations are those of this node.
type Migrations interface {
	// Busy is the error for a request that concerns a container with which a migration here has to do; nil:
	// none has.
	Busy(container string) error
	// Of is the id of that migration, and whether the container never runs here by it; empty: there is none.
	Of(container string) (id string, neverRuns bool)
	// UnreadAmong is the id of a migration whose journal cannot be used, and that is of one of these
	// containers; empty: there is none.
	UnreadAmong(containers ...string) string
	// Unusable is what a user does about a container that leaves by such a migration; empty: there is none.
	Unusable(of engine.Container) string
}

// New has seen no container. ctx is the life of the node.
func New(ctx context.Context, c Config) *Restarts {
	r := &Restarts{
		ctx: ctx, engine: c.Engine, migrations: c.Migrations, members: c.Members, prepare: c.Prepare,
		changed: c.Changed, log: c.Log, slots: make(chan struct{}, restartsAtOnce),
		known: map[string]*followed{},
	}
	r.again = func(ctx context.Context, d engine.Definition) error {
		return r.startAgain(ctx, d, false, r.engine.Restart)
	}
	return r
}

// Run starts what is due until ctx ends.
func (r *Restarts) Run(ctx context.Context) {
	told, what := inventory.Told{}, "containers that should be started again"
	for {
		next, err := r.look(ctx)
		if told.News(what, err) && r.ctx.Err() == nil {
			r.log.Warn(what, "error", err)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// look starts what is due now, and tells when to look again.
func (r *Restarts) look(ctx context.Context) (next time.Duration, err error) {
	ids, err := r.engine.Restartable()
	if err != nil {
		return restartEvery, err
	}
	r.keep(ids)
	next = restartEvery
	for _, id := range ids {
		if moving, _ := r.migrations.Of(id); moving != "" { // whose it is now that migration knows
			r.forget(id)
			continue
		}
		one, err := r.engine.Inspect(ctx, id)
		switch {
		case err != nil: // a damaged one is told when the agent starts
		case one.State == engine.Running:
			r.Ran(id)
		case one.State == engine.Exited:
			next = min(next, r.follow(ctx, one, time.Now()))
		}
	}
	return next, nil
}

// follow starts a container that has ended if it is due, or tells when it will be.
func (r *Restarts) follow(ctx context.Context, one engine.Container, now time.Time) (next time.Duration) {
	standing, why := r.standing(one)
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.of(one.Definition.ID)
	switch {
	case f.starting:
		return restartEvery
	case why != "":
		f.due = time.Time{}
		return restartEvery
	case f.due.IsZero():
		f.due = now.Add(backoff(max(standing.Failures, f.refused)))
	}
	if wait := f.due.Sub(now); wait > 0 {
		return wait
	}
	select {
	case r.slots <- struct{}{}:
	default: // enough are being started
		return restartEvery
	}
	f.starting = true
	go guard.Logged(r.log, func() {
		defer func() { <-r.slots }()
		r.start(ctx, one)
	})()
	return restartEvery
}

// start starts a container that is due.
func (r *Restarts) start(ctx context.Context, one engine.Container) {
	d := one.Definition
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	err := errors.New("its start was interrupted")
	defer func() { r.started(one, err) }() // also after a panic
	attempt := func() error {
		if err := r.members.Elsewhere(ctx, d, r.hasSeen(d.ID)); err != nil {
			return err
		}
		return r.again(ctx, d)
	}
	err = attempt()
}

// started notes what has come of a start.
func (r *Restarts) started(one engine.Container, err error) {
	d := one.Definition
	r.mu.Lock()
	f := r.of(d.ID)
	was := f.failed
	f.starting, f.due, f.failed, f.seen = false, time.Time{}, err, f.seen || err == nil
	switch {
	case err == nil:
		f.refused = 0
	case errors.Is(err, location.ErrElsewhere):
		f.due = time.Now().Add(askAgainEvery)
	case errors.Is(err, engine.ErrBusy), errors.Is(err, network.ErrHeld): // it passes, and is no failure
		f.due = time.Now().Add(restartEvery)
	default:
		f.refused++
	}
	r.mu.Unlock()
	switch {
	case err == nil:
		r.log.Info("container started again", "container", d.Name, "policy", d.Restart, "exit_code",
			one.ExitCode)
		r.changed()
	case r.ctx.Err() == nil && (was == nil || was.Error() != err.Error()):
		r.log.Error("container cannot be started again", "container", d.Name, "policy", d.Restart, "error",
			err)
	}
}

// of is what is known of a container. The caller has locked mu.
func (r *Restarts) of(container string) *followed {
	f := r.known[container]
	if f == nil {
		f = &followed{}
		r.known[container] = f
	}
	return f
}

// keep forgets all containers but these.
func (r *Restarts) keep(containers []string) {
	here := make(map[string]bool, len(containers))
	for _, id := range containers {
		here[id] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.known {
		if !here[id] {
			delete(r.known, id)
		}
	}
}

func (r *Restarts) forget(container string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, container)
}

// Ran notes that a container runs here.
func (r *Restarts) Ran(container string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.of(container); !f.starting {
		*f = followed{seen: true}
	}
}

func (r *Restarts) hasSeen(container string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.known[container]
	return f != nil && f.seen
}

// backoff is how long a container that has failed so often in a row stays ended.
func backoff(failures int) time.Duration {
	wait := firstBackoff
	for range failures {
		if wait *= 2; wait >= lastBackoff {
			return lastBackoff
		}
	}
	return wait
}
