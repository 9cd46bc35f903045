package oci

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// Stop has the engine stop a container.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := e.find(ctx, id)
	if err != nil {
		return err
	}
	return e.adapter.Stop(ctx, found, grace)
}

// Remove has the engine remove a container. Its volumes stay.
func (e *Engine) Remove(ctx context.Context, id string, force bool) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if _, arriving, err := e.arriving(id); arriving || err != nil || durable.Exists(e.departurePath(id)) {
		return errors.Join(err, fmt.Errorf("remove container %.12s: %w: it is being moved",
			id, engine.ErrBusy))
	}
	found, err := e.find(ctx, id)
	if err != nil {
		return err
	}
	defer e.engineIDs.Lock(found.ID)()
	if err := e.endUnseen(ctx, found, force); err != nil {
		return err
	}
	if err := e.adapter.Remove(ctx, found.ID, RemoveOptions{Force: force}); err != nil {
		return fmt.Errorf("remove container %s of %s: %w", found.name(), e.adapter.Title(), err)
	}
	if durable.Exists(e.camePath(id)) { // its engine was not to start it yet
		if err := e.adapter.Gone(found.ID); err != nil {
			return err
		}
	}
	if err := e.removeRestoreDir(id); err != nil {
		return fmt.Errorf("remove container %s of %s: %w", found.name(), e.adapter.Title(), err)
	}
	return errors.Join(durable.Remove(e.camePath(id)), e.unremember(id))
}

// endUnseen ends the processes of a container that has come and that its engine does not know to
// run: it could not, and nobody would know of them when it is removed.
func (e *Engine) endUnseen(ctx context.Context, found Container, force bool) error {
	if found.Container.State == engine.Running {
		return nil
	}
	dir, err := e.restoreDir(found.ID)
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

// Logs shows what the engine has logged of a container.
func (e *Engine) Logs(ctx context.Context, id string, options engine.LogOptions,
	emit func(engine.LogEntry) error) error {
	found, err := e.find(ctx, id)
	if err != nil {
		return err
	}
	return e.adapter.Logs(ctx, found, options, emit)
}

// Exec runs a process in a running container.
func (e *Engine) Exec(ctx context.Context, id string, process engine.Exec) (int, error) {
	found, err := e.running(ctx, id)
	if err != nil {
		return 0, err
	}
	return e.adapter.Exec(ctx, found, process)
}
