package lxc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// placeOf finds the place of an arrival, or else of a container. Error: engine.ErrNotFound.
func (r *arrivals) placeOf(ctx context.Context, id string) (place, error) {
	if !idPattern.MatchString(id) {
		return place{}, fmt.Errorf("LXC container %.80q: %w", id, engine.ErrNotFound)
	}
	var record arrivalRecord
	err := durable.Load(r.identities.place(id, "").arrival(), &record)
	if errors.Is(err, fs.ErrNotExist) {
		return r.identities.find(id)
	}
	if err == nil && !namePattern.MatchString(record.Name) {
		err = fmt.Errorf("the record of the arrival of LXC container %.12s has no name", id)
	}
	return r.identities.place(id, record.Name), err
}

// Arrived returns the outcome of an arrival, even after the agent crashed.
func (r *arrivals) Arrived(ctx context.Context, id string) (engine.Outcome, error) {
	r.waiting.End(id)
	defer r.catalog.lock(id)()
	p, err := r.placeOf(ctx, id)
	if errors.Is(err, engine.ErrNotFound) {
		return engine.NeverRan, nil
	}
	if err == nil && !durable.Exists(p.arrival()) {
		return engine.Ran, nil
	}
	outcome := engine.NeverRan
	if err == nil {
		outcome, err = r.outcome(ctx, p)
	}
	if err == nil && outcome == engine.Ran {
		err = r.settle(ctx, p)
	}
	if err != nil {
		return "", fmt.Errorf("find out about the arrival of LXC container %.12s: %w", id, err)
	}
	return outcome, nil
}

// outcome looks for the restore proxy's record. Without one it makes sure that none can come any more: the
// restore proxy has ended then, and without it CRIU, so LXC ends, or is ended.
func (r *arrivals) outcome(ctx context.Context, p place) (engine.Outcome, error) {
	ran, err := checkpoint.Ran(ctx, p.resumed())
	if err != nil {
		return "", err
	}
	if ran {
		return engine.Ran, nil
	}
	if err := r.remover.awaitEnd(ctx, p); err != nil {
		return "", err
	}
	return engine.NeverRan, p.sweep(ctx)
}

// settle turns a resumed arrival into a container when LXC has it: from then on LXC starts it according to
// its configuration.
func (r *arrivals) settle(ctx context.Context, p place) error {
	var record arrivalRecord
	err := durable.Load(p.arrival(), &record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = r.awaitRunning(ctx, p)
	}
	if err == nil {
		err = kernel.WriteFileAtomic(p.config(), []byte(record.Config), 0o644)
	}
	if err == nil {
		err = mounts.UnmountBelow(p.run)
	}
	if err == nil {
		err = kernel.RemoveDurable(p.arrival())
	}
	if err != nil {
		return fmt.Errorf("clean up after the arrival of LXC container %s: %w", p.name, err)
	}
	return durable.Remove(p.resumed())
}

// firstLook is how long LXC may work before it is asked. A question starts a program, which would take
// processor time from a container whose clients have waited for it.
const firstLook = 50 * time.Millisecond

// awaitRunning waits until LXC reports that the container runs, or has no monitor for it: the container has
// then ended since.
func (r *arrivals) awaitRunning(ctx context.Context, p place) error {
	const pause = 5 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	for wait := firstLook; ; wait = pause {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for LXC: %w", ctx.Err())
		case <-time.After(wait):
		}
		monitors, err := r.tools.monitors()
		if err != nil || !monitors[p.name] {
			return err
		}
		state, err := r.tools.tool(ctx, "lxc-info", p.name, "-s", "-H")
		if err == nil && strings.TrimSpace(state) != "STARTING" {
			return nil
		}
	}
}

// Discard removes an arrival that never ran, and everything that was made for it.
func (r *arrivals) Discard(ctx context.Context, id string) error {
	r.waiting.End(id)
	defer r.catalog.lock(id)()
	p, err := r.placeOf(ctx, id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil && !durable.Exists(p.arrival()) {
		err = fmt.Errorf("%w: it runs here; remove it instead", engine.ErrBusy)
	}
	if err == nil {
		err = r.discard(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("discard the arrival of LXC container %.12s: %w", id, err)
	}
	return nil
}

// discard ends and completely removes an arrival that must not have run.
func (r *arrivals) discard(ctx context.Context, p place) error {
	if err := r.end(ctx, p); err != nil {
		return err
	}
	return r.remover.remove(ctx, p)
}

// end ends an arrival that must not have run.
func (r *arrivals) end(ctx context.Context, p place) error {
	if !durable.Exists(p.arrival()) {
		return nil
	}
	outcome, err := r.outcome(ctx, p)
	if err == nil && outcome == engine.Ran {
		err = fmt.Errorf("%w: it has been resumed", engine.ErrBusy)
	}
	return err
}

// Salvage passes on the received files of an arrival that never ran, before Discard removes it.
func (r *arrivals) Salvage(ctx context.Context, id string, take func(files.Tree) error) error {
	r.waiting.End(id)
	defer r.catalog.lock(id)()
	p, err := r.placeOf(ctx, id)
	if errors.Is(err, engine.ErrNotFound) || err == nil && !durable.Exists(p.arrival()) {
		return nil // there is nothing, or it is a container
	}
	if err == nil {
		err = r.end(ctx, p)
	}
	if err == nil && durable.Exists(p.rootfs()) {
		err = take(files.Tree{Kind: files.Writable, Path: p.rootfs()})
	}
	if err != nil {
		return fmt.Errorf("salvage the arrival of LXC container %.12s: %w", id, err)
	}
	return nil
}

// Memory returns the progress of filling a container's memory while it runs.
func (r *arrivals) Memory(ctx context.Context, id string) (memory.FillReport, error) {
	p, err := r.placeOf(ctx, id)
	if err != nil {
		return memory.FillReport{}, err
	}
	report, err := pager.ReadReport(p.memory())
	if err != nil {
		return memory.FillReport{}, fmt.Errorf("look at the memory of LXC container %.12s: %w", id, err)
	}
	return report, nil
}

// RemotePages connects to the pager of a container.
func (r *arrivals) RemotePages(ctx context.Context, id string) (memory.RemotePages, error) {
	p, err := r.placeOf(ctx, id)
	if err != nil {
		return nil, err
	}
	return checkpoint.RemotePages(ctx, id, p.remoteSocket())
}
