package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// How long a container that is told to end has, at most, for its connections: before that, to accept
// waiting ones, and after that, to have its last data acknowledged. A peer that has not acknowledged the
// data by then gets a reset.
const (
	acceptPatience  = time.Second
	deliverPatience = time.Second
	revivePatience  = 10 * time.Second

	connectionsLook = 5 * time.Millisecond // between two checks
)

// Halt ends a running container with its own stop signal. It first records what ends the container.
func (e *Engine) Halt(ctx context.Context, id string, leave engine.Leave) (time.Time, error) {
	defer e.lock(id)()
	ctr, err := e.running(id)
	if err != nil {
		return time.Time{}, err
	}
	at, err := e.halt(ctx, e.paths.of(id), ctr, leave)
	if err != nil {
		return at, fmt.Errorf("stop container %s: %w", ctr.Definition.Name, err)
	}
	return at, nil
}

func (e *Engine) halt(
	ctx context.Context, place container, ctr engine.Container, leave engine.Leave,
) (time.Time, error) {
	init, err := checkpoint.Identify(ctr.PID)
	if err != nil {
		return time.Time{}, err
	}
	tcp, err := kernel.OpenTCPWatch(ctr.PID)
	if err != nil {
		return time.Time{}, err
	}
	defer tcp.Close()
	ports, err := portsOf(ctr.PID)
	if err != nil {
		return time.Time{}, err
	}
	if err := e.room.save(place.halted(),
		haltRecord{Init: init, At: time.Now(), Ports: ports, Leave: leave}); err != nil {
		return time.Time{}, err
	}
	// If a check fails, there is nothing to wait for.
	_ = awaitTCP(ctx, tcp, acceptPatience,
		func(now kernel.TCPUnderWay) bool { return now.HalfOpen == 0 && now.Unaccepted == 0 })
	at := time.Now()
	if err := e.end(ctx, place, ctr, init, ctr.Definition.StopPatience()); err != nil {
		return at, err
	}
	_ = awaitTCP(ctx, tcp, deliverPatience, func(now kernel.TCPUnderWay) bool { return now.Undelivered == 0 })
	return at, ctx.Err()
}

// awaitTCP checks a container's TCP until it is as wanted, or patience is over.
func awaitTCP(
	ctx context.Context, tcp *kernel.TCPWatch, patience time.Duration, wanted func(kernel.TCPUnderWay) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		now, err := tcp.UnderWay()
		if err != nil || wanted(now) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(connectionsLook):
		}
	}
}

// end tells a container's first process to end, kills all processes when its grace is over, and waits until
// the end is recorded.
func (e *Engine) end(
	ctx context.Context, place container, ctr engine.Container, init checkpoint.Identity,
	patience time.Duration,
) error {
	signal, err := engine.ParseSignal(ctr.Definition.StopSignal)
	if err != nil {
		return err
	}
	if err := init.Signal(signal); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if e.waitEnded(waiting, place) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return e.endNow(ctx, place)
}

// endNow kills a container's processes and waits until the end is recorded.
func (e *Engine) endNow(ctx context.Context, place container) error {
	group, err := cgroup.Open(place.cgroup())
	if err == nil {
		err = group.Kill(ctx)
	}
	// the container's monitor removes it, too
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	return e.waitEnded(waiting, place)
}

// waitEnded waits until a container's monitor has recorded its end, or neither of them exists any more.
func (e *Engine) waitEnded(ctx context.Context, place container) error {
	const pause = 2 * time.Millisecond
	for {
		ended, err := hasEnded(place)
		if err != nil || ended {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for its end: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

func hasEnded(place container) (bool, error) {
	var was record
	if err := durable.Load(place.record(), &was); err != nil {
		return false, err
	}
	if was.State == engine.Exited {
		return true, nil
	}
	_, lives, err := living(place)
	return err == nil && !lives, err
}

// Halted reports whether there is something for Revive to start.
func (e *Engine) Halted(ctx context.Context, id string) (bool, error) {
	defer e.lock(id)()
	place, err := e.find(id)
	if errors.Is(err, engine.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var was haltRecord
	if err := durable.Load(place.halted(), &was); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, err
	}
	ctr, err := e.awaitStart(ctx, place)
	if err != nil {
		return false, err
	}
	if ctr.State != engine.Running {
		return true, nil
	}
	if now, err := checkpoint.Identify(ctr.PID); err == nil && now != was.Init {
		// An agent restarted the container, and died before it could say so.
		return false, kernel.RemoveDurable(place.halted())
	}
	left := time.Until(was.At.Add(acceptPatience + ctr.Definition.StopPatience()))
	if err := e.end(ctx, place, ctr, was.Init, min(max(left, 0), ctr.Definition.StopPatience())); err != nil {
		return false, fmt.Errorf("stop container %s: %w", ctr.Definition.Name, err)
	}
	return true, nil
}

// awaitStart waits for a start that an earlier agent may have begun: while its monitor lives, the container
// will run.
func (e *Engine) awaitStart(ctx context.Context, place container) (engine.Container, error) {
	const pause = 5 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	for {
		var live liveState
		if err := durable.Load(place.runtime(), &live); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return engine.Container{}, err
		}
		ctr, err := e.inspect(place.id)
		if err != nil || ctr.State == engine.Running || !live.Monitor.Alive() {
			return ctr, err
		}
		select {
		case <-ctx.Done():
			return ctr, fmt.Errorf("wait for the monitor of container %s: %w", ctr.Definition.Name, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// Revive restarts a container that Halt has ended.
func (e *Engine) Revive(ctx context.Context, id string) (string, error) {
	defer e.lock(id)()
	place, err := e.find(id)
	if err != nil || !durable.Exists(place.halted()) {
		return "", err
	}
	var was haltRecord
	if err := durable.Load(place.halted(), &was); err != nil {
		return "", err
	}
	ctr, err := e.inspect(id)
	if err != nil {
		return "", err
	}
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("start container %s again: %w", ctr.Definition.Name, err)
	}
	if ctr.State != engine.Frozen {
		return fail(fmt.Errorf("%w: it is %s", engine.ErrBusy, ctr.State))
	}
	if err := e.settle(ctx, place); err != nil {
		return fail(err)
	}
	if err := e.bringUp(ctx, place, ctr.Definition, true); err != nil {
		return fail(errors.Join(err, e.settle(ctx, place)))
	}
	waiting, cancel := context.WithTimeout(ctx, revivePatience)
	defer cancel()
	health, err := e.newProbation(place, ctr.Definition, was.Ports).await(waiting)
	if err != nil { // it was as healthy or unhealthy before: there is no better place for it
		health = err.Error()
	}
	return health, kernel.RemoveDurable(place.halted())
}
