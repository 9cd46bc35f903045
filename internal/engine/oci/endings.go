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
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/shim"
)

// endings finds out what has become of arrivals, undoes those that never ran, and hands the others over.
type endings struct {
	adapter Adapter
	records *records
	lookup  *lookup
}

// outcome looks for the restore proxy's record. If there is none, outcome makes sure that none can be made
// later: a restore proxy without an agent makes none, and a proxy that starts later finds no agent.
func (o *endings) outcome(ctx context.Context, id, engineID string) (engine.Outcome, error) {
	if engineID != "" { // otherwise the engine has started nothing
		dir, err := o.lookup.restoreDir(engineID)
		if err == nil {
			err = dir.Void()
		}
		if err != nil {
			return "", err
		}
	}
	ran, err := checkpoint.Ran(ctx, o.records.recordPath(id))
	if err != nil {
		return "", err
	}
	if ran {
		return engine.Ran, nil
	}
	return engine.NeverRan, nil
}

// neverRan returns the record of an arrival that was not resumed and no longer can be, or nil if there is
// none. Error: engine.ErrBusy if it was resumed.
func (o *endings) neverRan(ctx context.Context, id string) (*arrivalRecord, error) {
	var was arrivalRecord
	err := durable.Load(o.records.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	outcome, err := o.outcome(ctx, id, was.EngineID)
	if err == nil && outcome == engine.Ran {
		err = fmt.Errorf("%w: it has been resumed; remove it instead", engine.ErrBusy)
	}
	return &was, err
}

// discard removes all of an arrival, which must not have run. It removes the engine's container first: as
// long as the engine could start it, its restore directory exists, so it can only be restored.
func (o *endings) discard(ctx context.Context, id string) error {
	was, err := o.neverRan(ctx, id)
	if err == nil && was != nil {
		err = o.removeArrival(ctx, id, *was)
	}
	if err != nil {
		return fmt.Errorf("discard the arrival of container %.12s: %w", id, err)
	}
	return nil
}

func (o *endings) removeArrival(ctx context.Context, id string, was arrivalRecord) error {
	engineID, err := o.lookup.madeLate(ctx, id, was)
	if err != nil {
		return err
	}
	if err := o.unmountShm(ctx, engineID, was.Definition); err != nil {
		return err
	}
	defer o.lookup.engineIDs.Lock(engineID)()
	if engineID != "" { // with volumes that the engine has made beyond the definition
		if err := o.adapter.Remove(ctx, engineID, RemoveOptions{Force: true, Volumes: true}); err != nil {
			return fmt.Errorf("remove it from %s: %w", o.adapter.Title(), err)
		}
		if err := o.lookup.awaitRemoved(ctx, engineID); err != nil {
			return err
		}
		if ender, is := o.adapter.(LeftEnder); is {
			if err := ender.EndLeft(ctx, engineID); err != nil {
				return err
			}
		}
		o.lookup.removeGroup(engineID)
		if err := o.vacate(engineID); err != nil {
			return err
		}
	}
	for _, gone := range []string{engineID, id} { // either ID may have a guard against starting
		if gone == "" {
			continue
		}
		if err := o.adapter.Gone(gone); err != nil {
			return err
		}
	}
	if err := o.removeMade(ctx, id, was.Volumes); err != nil {
		return err
	}
	return errors.Join(o.records.unremember(id), o.records.forget(id))
}

// leaveToNamesake ends the arrival of a container that no longer exists and whose ID its engine has given
// to another container. The other container must not itself be arriving here.
func (o *endings) leaveToNamesake(id, engineID string, dir shim.Dir) error {
	defer o.lookup.engineIDs.Lock(engineID)()
	its, err := o.lookup.engineID(id)
	if err != nil || its != engineID {
		return err
	}
	return dir.Settle()
}

// settle makes a resumed arrival an ordinary container. Its engine does not restart it before Settled.
func (o *endings) settle(ctx context.Context, id string) error {
	var was arrivalRecord
	err := durable.Load(o.records.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	found, err := o.lookup.find(ctx, id)
	// it has ended and was removed since
	if errors.Is(err, engine.ErrNotFound) || err == nil && o.lookup.namesake(found, id) {
		return o.settleRemoved(ctx, id, cmp.Or(was.EngineID, id))
	}
	var dir shim.Dir
	if err == nil {
		dir, err = o.lookup.restoreDir(found.ID)
	}
	if err != nil {
		return err
	}
	if orphan, err := o.records.orphan(id, dir); orphan || err != nil {
		return err
	}
	if err = o.adapter.Restart(ctx, found, nil); err == nil {
		err = dir.Settle()
	}
	if err == nil {
		since := withheld{Restart: was.Restart, Boot: was.Boot, Since: was.Began}
		err = save(o.records.camePath(id), cameRecord{EngineID: found.ID, withheld: since})
	}
	if err != nil {
		return err
	}
	return o.records.forget(id)
}

// settleRemoved forgets a resumed arrival whose container the engine has removed.
func (o *endings) settleRemoved(ctx context.Context, id, engineID string) error {
	dir, err := o.lookup.restoreDir(engineID)
	if err != nil {
		return err
	}
	if orphan, err := o.records.orphan(id, dir); orphan || err != nil {
		return err
	}
	remove := func() error { return errors.Join(dir.Remove(), o.adapter.Gone(engineID)) }
	used, err := o.lookup.whileUnused(ctx, id, engineID, remove)
	if err == nil && used {
		err = o.leaveToNamesake(id, engineID, dir)
	}
	if err != nil {
		return err
	}
	return o.records.forget(id)
}

// vacate removes the restore directory of an arrival, by the engine's ID.
func (o *endings) vacate(engineID string) error {
	if engineID == "" { // the engine has made no container
		return nil
	}
	dir, err := o.lookup.restoreDir(engineID)
	if err != nil {
		return err
	}
	return dir.Remove()
}

// unmountShm unmounts the /dev/shm of an arrival that its engine has not started. The engine does not know
// this mount.
func (o *endings) unmountShm(ctx context.Context, engineID string, d engine.Definition) error {
	if engineID == "" || !o.StartsLate(d) {
		return nil
	}
	found, err := o.lookup.ask(ctx, engineID)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if shm := o.adapter.Shm(found); shm != "" {
		return mounts.Unmount(shm)
	}
	return nil
}

// removeMade removes those of an arrival's volumes that were made for it. A volume that somebody else has
// made meanwhile stays, and so does a volume that is in use now.
func (o *endings) removeMade(ctx context.Context, id string, names []string) error {
	for _, name := range names {
		made, err := o.adapter.MadeFor(ctx, name, idLabel, id)
		if err == nil && made {
			err = o.adapter.RemoveVolume(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
