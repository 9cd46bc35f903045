package oci

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// Stop makes the engine stop a container.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := e.lookup.find(ctx, id)
	if err != nil {
		return err
	}
	return e.adapter.Stop(ctx, found, grace)
}

// Remove makes the engine remove a container. Its volumes stay.
func (e *Engine) Remove(ctx context.Context, id string, force bool) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if _, arriving, err := e.records.arriving(id); arriving || err != nil ||
		durable.Exists(e.records.departurePath(id)) {
		return errors.Join(err, fmt.Errorf("remove container %.12s: %w: it is being moved",
			id, engine.ErrBusy))
	}
	found, err := e.lookup.find(ctx, id)
	if err != nil {
		return err
	}
	defer e.lookup.engineIDs.Lock(found.ID)()
	if err := e.endUnseen(ctx, found, force); err != nil {
		return err
	}
	if err := e.adapter.Remove(ctx, found.ID, RemoveOptions{Force: force}); err != nil {
		return fmt.Errorf("remove container %s of %s: %w", found.name(), e.adapter.Title(), err)
	}
	if durable.Exists(e.records.camePath(id)) { // its engine was not to start it yet
		if err := e.adapter.Gone(found.ID); err != nil {
			return err
		}
	}
	if err := e.remains.removeRestoreDir(id); err != nil {
		return fmt.Errorf("remove container %s of %s: %w", found.name(), e.adapter.Title(), err)
	}
	return errors.Join(durable.Remove(e.records.camePath(id)), e.records.unremember(id))
}

// endUnseen ends the processes of an arrived container if its engine does not know that it runs. The engine
// could not end them, and nobody would know of them once the container is removed.
func (e *Engine) endUnseen(ctx context.Context, found Container, force bool) error {
	if found.Container.State == engine.Running {
		return nil
	}
	dir, err := e.lookup.restoreDir(found.ID)
	if err != nil {
		return err
	}
	runs, err := occupied(dir)
	if err != nil || !runs {
		return err
	}
	if !force {
		return fmt.Errorf("remove container %s of %s: %w: its processes still run, unknown to the "+
			"engine; --force ends them and removes it",
			found.name(), e.adapter.Title(), engine.ErrBusy)
	}
	group, err := groupIn(dir)
	if err != nil {
		return err
	}
	return group.Kill(ctx)
}

// Logs passes the engine's log of a container to emit.
func (e *Engine) Logs(ctx context.Context, id string, options engine.LogOptions,
	emit func(engine.LogEntry) error) error {
	found, err := e.lookup.find(ctx, id)
	if err != nil {
		return err
	}
	return e.adapter.Logs(ctx, found, options, emit)
}

// Exec runs a process in a running container.
func (e *Engine) Exec(ctx context.Context, id string, process engine.Exec) (int, error) {
	found, err := e.lookup.running(ctx, id)
	if err != nil {
		return 0, err
	}
	return e.adapter.Exec(ctx, found, process)
}
