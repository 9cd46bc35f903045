package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/files"
)

// Arrived tells what became of an arrival, also after the agent crashed.
func (e *Engine) Arrived(ctx context.Context, id string) (engine.Outcome, error) {
	if !idPattern.MatchString(id) {
		return "", e.unknown(id)
	}
	e.arrivals.End(id)
	defer e.lock(id)()
	var was arrivalRecord
	err := durable.Load(e.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		_, err := e.find(ctx, id)
		switch {
		case err == nil:
			return engine.Ran, nil
		case errors.Is(err, engine.ErrNotFound):
			return engine.NeverRan, nil
		}
		return "", err
	}
	if err != nil {
		return "", err
	}
	outcome, err := e.outcome(ctx, id, was.EngineID)
	if err == nil && outcome == engine.Ran {
		err = e.settle(ctx, id)
	}
	if err != nil {
		return "", fmt.Errorf("find out about the arrival of container %.12s: %w", id, err)
	}
	return outcome, nil
}

// outcome looks for the restore proxy's record, and makes sure that none can come any more if there
// is none: a restore proxy without an agent makes none, and one that does not run yet finds no
// agent.
func (e *Engine) outcome(ctx context.Context, id, engineID string) (engine.Outcome, error) {
	if engineID != "" { // otherwise the engine has started nothing
		dir, err := e.restoreDir(engineID)
		if err == nil {
			err = dir.Void()
		}
		if err != nil {
			return "", err
		}
	}
	ran, err := checkpoint.Ran(ctx, e.recordPath(id))
	if err != nil {
		return "", err
	}
	if ran {
		return engine.Ran, nil
	}
	return engine.NeverRan, nil
}

// settle makes an ordinary container of an arrival that was resumed. Its engine does not start it
// again before Settled.
func (e *Engine) settle(ctx context.Context, id string) error {
	var was arrivalRecord
	err := durable.Load(e.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	found, err := e.find(ctx, id)
	// it has ended, and was removed, since
	if errors.Is(err, engine.ErrNotFound) || err == nil && e.namesake(found, id) {
		return e.settleRemoved(ctx, id, cmp.Or(was.EngineID, id))
	}
	var dir shim.Dir
	if err == nil {
		dir, err = e.restoreDir(found.ID)
	}
	if err != nil {
		return err
	}
	if orphan, err := e.orphan(id, dir); orphan || err != nil {
		return err
	}
	if err = e.adapter.Restart(ctx, found, nil); err == nil {
		err = dir.Settle()
	}
	if err == nil {
		since := withheld{Restart: was.Restart, Boot: was.Boot, Since: was.Began}
		err = save(e.camePath(id), cameRecord{EngineID: found.ID, withheld: since})
	}
	if err != nil {
		return err
	}
	return e.forget(id)
}

// settleRemoved forgets an arrival that was resumed, and that its engine has removed.
func (e *Engine) settleRemoved(ctx context.Context, id, engineID string) error {
	dir, err := e.restoreDir(engineID)
	if err != nil {
		return err
	}
	if orphan, err := e.orphan(id, dir); orphan || err != nil {
		return err
	}
	remove := func() error { return errors.Join(dir.Remove(), e.adapter.Gone(engineID)) }
	used, err := e.whileUnused(ctx, id, engineID, remove)
	if err == nil && used {
		err = e.leaveToNamesake(id, engineID, dir)
	}
	if err != nil {
		return err
	}
	return e.forget(id)
}

// leaveToNamesake ends an arrival in the place of a container that is no more, and whose id its
// engine has given to another one: not one that comes here itself.
func (e *Engine) leaveToNamesake(id, engineID string, dir shim.Dir) error {
	defer e.engineIDs.Lock(engineID)()
	its, err := e.engineID(id)
	if err != nil || its != engineID {
		return err
	}
	return dir.Settle()
}

// vacate removes the restore directory of an arrival, by the engine's own id.
func (e *Engine) vacate(engineID string) error {
	if engineID == "" { // the engine had made none
		return nil
	}
	dir, err := e.restoreDir(engineID)
	if err != nil {
		return err
	}
	return dir.Remove()
}

// Discard removes an arrival that never ran.
func (e *Engine) Discard(ctx context.Context, id string) error {
	if !idPattern.MatchString(id) {
		return e.unknown(id)
	}
	e.arrivals.End(id)
	defer e.lock(id)()
	return e.discard(ctx, id)
}

// discard removes all of an arrival that must not have run. The engine's container goes first: as
// long as the engine could start it, its restore directory is there, and it can only be restored.
func (e *Engine) discard(ctx context.Context, id string) error {
	was, err := e.neverRan(ctx, id)
	if err == nil && was != nil {
		err = e.removeArrival(ctx, id, *was)
	}
	if err != nil {
		return fmt.Errorf("discard the arrival of container %.12s: %w", id, err)
	}
	return nil
}

// neverRan is the record of an arrival that has not been resumed and cannot be any more; nil if
// there is none. Error: engine.ErrBusy if it has been.
func (e *Engine) neverRan(ctx context.Context, id string) (*arrivalRecord, error) {
	var was arrivalRecord
	err := durable.Load(e.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	outcome, err := e.outcome(ctx, id, was.EngineID)
	if err == nil && outcome == engine.Ran {
		err = fmt.Errorf("%w: it has been resumed; remove it instead", engine.ErrBusy)
	}
	return &was, err
}

func (e *Engine) removeArrival(ctx context.Context, id string, was arrivalRecord) error {
	engineID, err := e.madeLate(ctx, id, was)
	if err != nil {
		return err
	}
	if err := e.unmountShm(ctx, engineID, was.Definition); err != nil {
		return err
	}
	defer e.engineIDs.Lock(engineID)()
	if engineID != "" { // with the volumes that the engine has made beside those of the definition
		if err := e.adapter.Remove(ctx, engineID, RemoveOptions{Force: true, Volumes: true}); err != nil {
			return fmt.Errorf("remove it from %s: %w", e.adapter.Title(), err)
		}
		if err := e.awaitRemoved(ctx, engineID); err != nil {
			return err
		}
		if ender, is := e.adapter.(LeftEnder); is {
			if err := ender.EndLeft(ctx, engineID); err != nil {
				return err
			}
		}
		e.removeGroup(engineID)
		if err := e.vacate(engineID); err != nil {
			return err
		}
	}
	for _, gone := range []string{engineID, id} { // by either it may be kept from being started
		if gone == "" {
			continue
		}
		if err := e.adapter.Gone(gone); err != nil {
			return err
		}
	}
	if err := e.removeMade(ctx, id, was.Volumes); err != nil {
		return err
	}
	return errors.Join(e.unremember(id), e.forget(id))
}

// removeGroup removes the cgroup of what has arrived and its engine has removed. If its daemon was killed
// meanwhile, the engine may not know the cgroup, which its runtime had just made. A cgroup with processes
// stays: they may be those of a new container with that name. No failure matters: an undo must not wait for
// an empty cgroup.
func (e *Engine) removeGroup(engineID string) {
	dir, err := e.restoreDir(engineID)
	if err != nil {
		return
	}
	if group, err := groupIn(dir); err == nil {
		_ = group.Remove() // best effort
	}
}

// Salvage ends an arrival that never ran, and keeps nothing of it.
func (e *Engine) Salvage(ctx context.Context, id string, _ func(files.Tree) error) error {
	if !idPattern.MatchString(id) {
		return e.unknown(id)
	}
	e.arrivals.End(id)
	defer e.lock(id)()
	_, err := e.neverRan(ctx, id)
	return err
}
