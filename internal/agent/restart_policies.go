package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
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

// restarts starts containers of the embedded engine again as their policies say, after they have ended
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
type restarts struct {
	agent *Agent
	// members are the other members of the cluster, which are asked for a container that has ended.
	members location.Members
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

func newRestarts(a *Agent) *restarts {
	again := func(ctx context.Context, d engine.Definition) error {
		return a.startAgain(ctx, d, false, a.embedded.Restart)
	}
	return &restarts{
		agent: a, again: again,
		members: location.Members{Others: a.peers.AllOthers, Reaches: a.peers.Reaches,
			Presence: location.Connect(a.peers.Asking).Presence, Log: a.log},
		slots: make(chan struct{}, restartsAtOnce), known: map[string]*followed{},
	}
}

// run starts what is due until ctx ends.
func (r *restarts) run(ctx context.Context) {
	told := inventory.Told{}
	for {
		next, err := r.look(ctx)
		r.agent.tellOnce(told, "containers that should be started again", err)
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
func (r *restarts) look(ctx context.Context) (next time.Duration, err error) {
	ids, err := r.agent.embedded.Restartable()
	if err != nil {
		return restartEvery, err
	}
	r.keep(ids)
	next = restartEvery
	for _, id := range ids {
		if r.agent.moves.of(id) != nil { // whose it is now that migration knows
			r.forget(id)
			continue
		}
		one, err := r.agent.embedded.Inspect(ctx, id)
		switch {
		case err != nil: // a damaged one is told when the agent starts
		case one.State == engine.Running:
			r.ran(id)
		case one.State == engine.Exited:
			next = min(next, r.follow(ctx, one, time.Now()))
		}
	}
	return next, nil
}

// follow starts a container that has ended if it is due, or tells when it will be.
func (r *restarts) follow(ctx context.Context, one engine.Container, now time.Time) (next time.Duration) {
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
	go r.agent.guarded(func() {
		defer func() { <-r.slots }()
		r.start(ctx, one)
	})()
	return restartEvery
}

// start starts a container that is due.
func (r *restarts) start(ctx context.Context, one engine.Container) {
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
func (r *restarts) started(one engine.Container, err error) {
	a, d := r.agent, one.Definition
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
		a.log.Info("container started again", "container", d.Name, "policy", d.Restart, "exit_code",
			one.ExitCode)
		a.lists.Changed(a.embedded)
	case a.ctx.Err() == nil && (was == nil || was.Error() != err.Error()):
		a.log.Error("container cannot be started again", "container", d.Name, "policy", d.Restart, "error",
			err)
	}
}

// of is what is known of a container. The caller has locked mu.
func (r *restarts) of(container string) *followed {
	f := r.known[container]
	if f == nil {
		f = &followed{}
		r.known[container] = f
	}
	return f
}

// keep forgets all containers but these.
func (r *restarts) keep(containers []string) {
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

func (r *restarts) forget(container string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, container)
}

// ran notes that a container runs here.
func (r *restarts) ran(container string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.of(container); !f.starting {
		*f = followed{seen: true}
	}
}

func (r *restarts) hasSeen(container string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.known[container]
	return f != nil && f.seen
}

// standing is what the container's policy says now, and why the container is not to be started; "":
// it is.
func (r *restarts) standing(one engine.Container) (embedded.Standing, string) {
	if err := r.agent.mayStart(one.Definition, false); err != nil {
		return embedded.Standing{}, plain(err)
	}
	standing, err := r.agent.embedded.Standing(one)
	switch {
	case err != nil:
		return standing, plain(err)
	case one.Leaving != nil:
		return standing, standing.Why + r.agent.moves.unusable(one)
	case standing.Unheld:
		return standing, standing.Why + "; " + byForce(one.Definition)
	case !standing.Due:
		return standing, standing.Why
	}
	if !r.hasSeen(one.Definition.ID) {
		if missing := r.members.Unreached(); len(missing) > 0 {
			return standing, fmt.Sprintf("it may be on %s, which cannot be reached: see \"godwit nodes\". "+
				"It is started when all nodes have answered; \"godwit start --force %s\" starts it now, "+
				"\"godwit node rm\" removes a node that is lost for good", strings.Join(missing, ", "),
				one.Definition.Name)
		}
	}
	return standing, ""
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

// whyNot tells users why a container of the embedded engine does not run.
func (r *restarts) whyNot(one engine.Container) string {
	if _, why := r.standing(one); why != "" {
		return why
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.known[one.Definition.ID]
	again := "it is started again in a moment"
	if f != nil && time.Until(f.due) > restartEvery {
		again = fmt.Sprintf("it is started again in %s", time.Until(f.due).Round(time.Second))
	}
	if f != nil && errors.Is(f.failed, location.ErrElsewhere) && !errors.Is(f.failed, location.ErrThere) {
		again = byForce(one.Definition) + "; the other nodes are asked again every " + askAgainEvery.String()
	}
	if f != nil && f.failed != nil {
		return fmt.Sprintf("it could not be started: %s; %s", plain(f.failed), again)
	}
	return again
}

// byForce says how a user starts a container of which it cannot be found out whether another node has it.
func byForce(d engine.Definition) string {
	return fmt.Sprintf(`if it is nowhere else, "godwit start --force %s" starts it here`, d.Name)
}

// wanted reports whether a container that has ended has a policy that would have it run.
func (r *restarts) wanted(one engine.Container) bool {
	if one.Definition.Restart == "" || one.Definition.Restart == string(engine.RestartNo) {
		return false
	}
	standing, err := r.agent.embedded.Standing(one)
	return err != nil || standing.Due || standing.Unheld || one.Leaving != nil
}

// explain adds to containers of the embedded engine why they do not run.
func (r *restarts) explain(containers []engine.Container) {
	for i := range containers {
		one := &containers[i]
		if one.Definition.EngineName == "" && (one.State == engine.Exited || one.State == engine.Created) {
			one.NotRunning = r.whyNot(*one)
		}
	}
}

// start starts a container of the embedded engine for a user. With force it does so although it cannot
// be found out whether another node has it.
func (a *Agent) start(ctx context.Context, reference string, force bool) error {
	one, err := a.idle(ctx, reference)
	if err != nil {
		return err
	}
	d := one.Definition
	switch {
	case d.EngineName != "":
		return fmt.Errorf("%w: container %s belongs to %s: start it with that engine", errRefused, d.Name,
			d.EngineName)
	case one.State == engine.Running:
		return nil
	case one.State == engine.Damaged:
		return fmt.Errorf("%w: what is recorded of container %s cannot be read", errRefused, d.Name)
	}
	standing, err := a.embedded.Standing(one)
	if err != nil {
		return err
	}
	if standing.Unheld && !force {
		return fmt.Errorf("%w: container %s: %s; %s", errRefused, d.Name, standing.Why, byForce(d))
	}
	if one.Leaving != nil {
		return fmt.Errorf("%w: container %s: %s%s", engine.ErrBusy, d.Name, standing.Why,
			a.moves.unusable(one))
	}
	if err := a.mayStart(d, force); err != nil {
		return err
	}
	err = a.restarts.members.Elsewhere(ctx, d, a.restarts.hasSeen(d.ID))
	switch {
	case errors.Is(err, location.ErrThere):
		return err
	case err != nil && !force:
		return fmt.Errorf("%w; %s", err, byForce(d))
	}
	err = a.startAgain(ctx, d, force, a.embedded.StartAfter)
	if err == nil {
		a.restarts.ran(d.ID)
	}
	return err
}

// startAgain starts a container, and makes what it needs of this node when the engine has locked it.
func (a *Agent) startAgain(
	ctx context.Context, d engine.Definition, force bool,
	start func(ctx context.Context, id string, prepare embedded.Prepare) error,
) error {
	return start(ctx, d.ID, func(ctx context.Context, d engine.Definition) error {
		if err := a.mayStart(d, force); err != nil {
			return err
		}
		if err := a.moves.checkVolumes(d); err != nil {
			return err
		}
		if _, err := a.attachments.Attach(ctx, d); err != nil {
			return err
		}
		return a.network.Route(d.Network.Address, network.Local(d.ID))
	})
}

// mayStart refuses to start a container with which a migration here has to do. A user who knows
// better may start one of whose migration the journal cannot be used. A journal that does not say
// of which container it is stands against none: if a container here had left by its migration the
// engine's note would say so, and else the other nodes.
func (a *Agent) mayStart(d engine.Definition, force bool) error {
	if move := a.moves.of(d.ID); move != nil {
		return move.busy()
	}
	if id := a.moves.unreadAmong(d.ID); id != "" && !force {
		return fmt.Errorf("%w: the journal of migration %s cannot be used, so it is unknown whether "+
			"container %s "+
			`has moved away: see "godwit migration ls"; %s`, engine.ErrBusy, id, d.Name, byForce(d))
	}
	return nil
}
