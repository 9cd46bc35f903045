package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
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

// halts ends containers that will be started anew at another node, and starts again those that will not.
type halts struct {
	catalog   *catalog
	paths     paths
	processes *processes
	execs     *execs
	notes     *notes
}

// Halt ends a running container with its own stop signal. It first records what ends the container.
func (h *halts) Halt(ctx context.Context, id string, leave engine.Leave) (time.Time, error) {
	defer h.catalog.lock(id)()
	ctr, err := h.catalog.running(id)
	if err != nil {
		return time.Time{}, err
	}
	at, err := h.halt(ctx, h.paths.of(id), ctr, leave)
	if err != nil {
		return at, fmt.Errorf("stop container %s: %w", ctr.Definition.Name, err)
	}
	return at, nil
}

func (h *halts) halt(
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
	if err := h.notes.room.save(place.halted(),
		haltRecord{Init: init, At: time.Now(), Ports: ports, Leave: leave}); err != nil {
		return time.Time{}, err
	}
	// If a check fails, there is nothing to wait for.
	_ = awaitTCP(ctx, tcp, acceptPatience,
		func(now kernel.TCPUnderWay) bool { return now.HalfOpen == 0 && now.Unaccepted == 0 })
	at := time.Now()
	if err := h.processes.end(ctx, place, ctr, init, ctr.Definition.StopPatience()); err != nil {
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

// Halted reports whether there is something for Revive to start.
func (h *halts) Halted(ctx context.Context, id string) (bool, error) {
	defer h.catalog.lock(id)()
	place, err := h.catalog.find(id)
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
	ctr, err := h.catalog.awaitStart(ctx, place)
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
	patience := min(max(left, 0), ctr.Definition.StopPatience())
	if err := h.processes.end(ctx, place, ctr, was.Init, patience); err != nil {
		return false, fmt.Errorf("stop container %s: %w", ctr.Definition.Name, err)
	}
	return true, nil
}

// Revive restarts a container that Halt has ended.
func (h *halts) Revive(ctx context.Context, id string) (string, error) {
	defer h.catalog.lock(id)()
	place, err := h.catalog.find(id)
	if err != nil || !durable.Exists(place.halted()) {
		return "", err
	}
	var was haltRecord
	if err := durable.Load(place.halted(), &was); err != nil {
		return "", err
	}
	ctr, err := h.catalog.inspect(id)
	if err != nil {
		return "", err
	}
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("start container %s again: %w", ctr.Definition.Name, err)
	}
	if ctr.State != engine.Frozen {
		return fail(fmt.Errorf("%w: it is %s", engine.ErrBusy, ctr.State))
	}
	if err := h.processes.settle(ctx, place); err != nil {
		return fail(err)
	}
	if err := h.processes.bringUp(ctx, place, ctr.Definition, true); err != nil {
		return fail(errors.Join(err, h.processes.settle(ctx, place)))
	}
	waiting, cancel := context.WithTimeout(ctx, revivePatience)
	defer cancel()
	health, err := newProbation(h.execs, place, ctr.Definition, was.Ports).await(waiting)
	if err != nil { // it was as healthy or unhealthy before: there is no better place for it
		health = err.Error()
	}
	return health, kernel.RemoveDurable(place.halted())
}

// ExamineAnew lists the obstacles to starting this running container again on another node.
func (h *halts) ExamineAnew(ctx context.Context, id string) ([]engine.Problem, error) {
	ctr, err := h.catalog.running(id)
	if err != nil {
		return nil, err
	}
	if ctr.Definition.Health == nil {
		return nil, nil
	}
	var problems []engine.Problem
	if err := h.execs.checkHealth(ctx, h.paths.of(id), ctr.Definition); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		problems = append(problems, engine.Problem{
			What:   "health of container " + ctr.Definition.Name,
			Why:    err.Error() + ": it would not become healthy at the target either",
			Remedy: "repair it, or run it with another --health-cmd, or with --health-cmd none",
		})
	}
	return problems, nil
}
