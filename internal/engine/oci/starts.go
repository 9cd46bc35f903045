package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
)

// While there may be two copies of a container, the engines of both nodes are told not to start it: at the
// source from the start of its departure until that is undone, at the target until the source has given its
// copy away. If the container ends meanwhile, by itself or because the machine loses power, the engine does
// not restart it, not even when the machine boots. So this package does that when it gives the engine its
// restart policy again.

// withheld is the restart policy that an engine was not given for a container.
type withheld struct {
	Restart json.RawMessage `json:"restart"` // when the container ends
	Boot    string          `json:"boot"`    // of the machine, while the container ran
	Since   time.Time       `json:"since"`
}

// cameRecord exists from when an arrived container runs until the source has given its copy away.
type cameRecord struct {
	EngineID string `json:"own_id"`
	withheld
}

// endedWith reports whether a container that ran in this boot of the machine has ended with it.
func endedWith(boot string) (bool, error) {
	now, err := kernel.BootID()
	return boot != "" && boot != now, err
}

// starts keeps the engine from starting a copy of a container that moves, and gives containers back to it.
type starts struct {
	adapter Adapter
	records *records
	lookup  *lookup
	marks   checkpoint.Locks // by the common IDs, taken after the engine's locks: see MarkMoved
}

// noRestarts keeps the engine from starting a container again, in any case and for anybody, and records the
// engine's restart policy.
func (s *starts) noRestarts(
	ctx context.Context, id string, a alive, first checkpoint.Identity, leave engine.Leave,
) error {
	boot, err := kernel.BootID()
	if err != nil {
		return err
	}
	found := a.found
	record := departureRecord{
		Started: time.Now(), First: first, Freezer: a.group.FreezerDir(), Restart: found.Restart, Boot: boot,
		Leave: leave,
		Name:  found.name(),
	}
	var was departureRecord
	err = durable.Load(s.records.departurePath(id), &was)
	if err == nil { // left by an agent that was killed, before or after it told the engine
		record.Restart, record.Name = was.Restart, cmp.Or(was.Name, record.Name)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := save(s.records.departurePath(id), record); err != nil {
		return err
	}
	if err := s.adapter.Restart(ctx, found, nil); err != nil {
		return err
	}
	if guarder, is := s.adapter.(Guarder); is {
		return guarder.Guard(ctx, found)
	}
	return nil
}

// restartsAgain gives a container that stays back to its engine.
func (s *starts) restartsAgain(ctx context.Context, id string) error {
	unlock, err := s.marks.LockBefore(ctx, id) // wait until nobody marks the container any more
	if err != nil {
		return err
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(s.records.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(s.unmark(ctx, id, was.moved()), s.unguard(ctx, id)); err != nil {
		return err
	}
	failed, err := s.giveBack(ctx, id, withheld{Restart: was.Restart, Boot: was.Boot, Since: was.Started})
	if errors.Is(err, engine.ErrNotFound) { // it has been removed
		err = s.gone(ctx, id)
	}
	if err == nil {
		err = durable.Remove(s.records.departurePath(id))
	}
	if err != nil {
		return errors.Join(failed, err)
	}
	return errors.Join(failed, s.records.forget(id)) // the copy of its log, and CRIU's logs
}

// giveBack gives a container back to its engine, which was told not to start it. If the container has ended
// meanwhile and the engine would have restarted it, giveBack starts it. It tries that once; failed is the
// engine's reason if the engine refuses.
func (s *starts) giveBack(ctx context.Context, id string, was withheld) (failed, err error) {
	found, err := s.lookup.find(ctx, id)
	if err != nil {
		return nil, err
	}
	starts, err := s.wouldRun(ctx, found, was)
	if err == nil {
		err = s.adapter.Restart(ctx, found, was.Restart)
	}
	// the container may have ended before that
	if _, tells := s.adapter.(Restarter); err == nil && tells && found.Container.State == engine.Running {
		if found, err = s.lookup.find(ctx, id); err == nil {
			starts, err = s.wouldRun(ctx, found, was)
		}
	}
	if err != nil || !starts {
		return nil, err
	}
	if failed = s.adapter.Start(ctx, found.ID); failed != nil {
		failed = fmt.Errorf("have %s start container %s again, which ended while it moved: %w",
			s.adapter.Title(), found.name(), failed)
		_, err = s.lookup.find(ctx, id) // without this answer, the start was not answered either
	}
	return failed, err
}

// wouldRun reports whether the engine would have restarted a container that has ended while its restart
// policy was withheld.
func (s *starts) wouldRun(ctx context.Context, found Container, was withheld) (bool, error) {
	if found.Container.State == engine.Running {
		return false, nil
	}
	ended, err := endedWith(was.Boot)
	if err != nil || ended {
		return ended && s.adapter.StartsAtBoot(found, was.Restart), err
	}
	restarter, is := s.adapter.(Restarter)
	if !is || found.Container.State != engine.Exited {
		return false, nil
	}
	return restarter.Restarts(ctx, found, was.Restart, was.Since)
}

// unguard lets the engine start a container that stays here.
func (s *starts) unguard(ctx context.Context, id string) error {
	guarder, is := s.adapter.(Guarder)
	if !is {
		return nil
	}
	found, err := s.lookup.find(ctx, id)
	if errors.Is(err, engine.ErrNotFound) { // it has been removed, together with its guard
		return nil
	}
	if err == nil {
		err = guarder.Unguard(ctx, found)
	}
	return err
}

// gone deletes what the adapter keeps of a container that no longer exists.
func (s *starts) gone(ctx context.Context, id string) error {
	engineID, err := s.lookup.engineID(id)
	if err != nil {
		return err
	}
	_, err = s.lookup.whileUnused(ctx, id, engineID, func() error { return s.adapter.Gone(engineID) })
	return err
}
