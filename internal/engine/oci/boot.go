package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/records"
	"github.com/godwit/godwit/internal/kernel"
)

// As long as a container leaves or arrives its engine is told not to start it. If it ends meanwhile, by itself or because the machine loses
// its power, the engine does not start it again, nor with the others when the machine comes up; so that is done here, as soon as it is
// certain that there is no other copy: at the source when the move is undone, at the target when the source has given its copy away.

// endedWith tells whether what ran in this boot of the machine has ended with it.
func endedWith(boot string) (bool, error) {
	now, err := kernel.BootID()
	return boot != "" && boot != now, err
}

// endedPath is where it is written down that a container which has come here ended with the machine before its engine was told to start it:
// the boot after that.
func (e *Engine) endedPath(id string) string {
	return filepath.Join(e.config.StateDir, "engines", e.Name()+"-ended", id)
}

// noteEnded notes that, if a container that has arrived in this boot of the machine did so.
func (e *Engine) noteEnded(id, boot string) error {
	ended, err := endedWith(boot)
	if err != nil || !ended {
		return err
	}
	now, err := kernel.BootID()
	if err != nil {
		return err
	}
	return save(e.endedPath(id), now)
}

// StartAgain has the engine start a container that has come here and ended with the machine: its engine did not know then that it was to
// start it. After yet another boot it has done so by itself.
func (e *Engine) StartAgain(ctx context.Context, id string) error {
	defer e.lock(id)()
	var boot string
	err := records.Load(e.endedPath(id), &boot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	later, err := endedWith(boot)
	if err != nil {
		return err
	}
	if later {
		return records.Remove(e.endedPath(id))
	}
	found, err := e.find(ctx, id)
	if err == nil {
		err = e.startAgain(ctx, found, found.Restart)
	}
	if errors.Is(err, engine.ErrAway) {
		return err
	}
	if errors.Is(err, engine.ErrNotFound) { // it has been removed
		err = nil
	}
	return errors.Join(err, records.Remove(e.endedPath(id)))
}

// startAgain has the engine start a container that ended with the machine, if it would have done so by itself.
func (e *Engine) startAgain(ctx context.Context, found Found, restart json.RawMessage) error {
	if found.Container.State == engine.Running || !e.adapter.StartsAtBoot(found, restart) {
		return nil
	}
	return e.start(ctx, found)
}

func (e *Engine) start(ctx context.Context, found Found) error {
	if err := e.adapter.Start(ctx, found.ID); err != nil {
		return fmt.Errorf("have %s start container %s again, which ended while it was to leave: %w", e.adapter.Title(), found.name(), err)
	}
	return nil
}

// wouldRun tells whether a container that has ended since it was to leave would have been started again by its engine, which was told not to.
func (e *Engine) wouldRun(ctx context.Context, found Found, was departureRecord) (bool, error) {
	if found.Container.State == engine.Running {
		return false, nil
	}
	ended, err := endedWith(was.Boot)
	if err != nil || ended {
		return ended && e.adapter.StartsAtBoot(found, was.Restart), err
	}
	restarter, is := e.adapter.(Restarter)
	if !is || found.Container.State != engine.Exited {
		return false, nil
	}
	return restarter.Restarts(ctx, found, was.Restart, was.Started)
}
