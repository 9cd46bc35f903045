package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// As long as there may be two copies of a container the engines of both nodes are told not to start
// it: at the source from when it is to leave until that is undone, at the target until the source
// has given its copy away. If it ends meanwhile, by itself or because the machine loses its power,
// the engine does not start it again, nor with the others when the machine comes up; so that is
// done here, when the engine is told again what to do with it.

// withheld is what an engine has not been told to do with a container.
type withheld struct {
	Restart json.RawMessage `json:"restart"` // when it ends
	Boot    string          `json:"boot"`    // of the machine, in which it ran
	Since   time.Time       `json:"since"`
}

// cameRecord is there from when a container that has come here runs until the source has given its copy away.
type cameRecord struct {
	EngineID string `json:"own_id"`
	withheld
}

func (e *Engine) camePath(id string) string {
	return filepath.Join(e.config.StateDir, "engines", e.Name()+"-came", id)
}

// endedWith tells whether what ran in this boot of the machine has ended with it.
func endedWith(boot string) (bool, error) {
	now, err := kernel.BootID()
	return boot != "" && boot != now, err
}

// Settled has the engine do with a container that has come here what it did at the source: there is
// no other copy any more. It fails for one that runs without its engine, for as long as it does:
// see orphan.
func (e *Engine) Settled(ctx context.Context, id string) error {
	defer e.lock(id)()
	var was cameRecord
	err := durable.Load(e.camePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return e.orphanError(id)
	}
	if err != nil {
		return err
	}
	failed, err := e.giveBack(ctx, id, was.withheld)
	if errors.Is(err, engine.ErrNotFound) { // it has been removed
		_, err = e.whileUnused(ctx, id, was.EngineID, func() error { return e.adapter.Gone(was.EngineID) })
	}
	if err == nil {
		err = durable.Remove(e.camePath(id))
	}
	return errors.Join(failed, err)
}

// giveBack gives a container back to its engine, which has been told not to start it, and has it
// start one that has ended meanwhile if it would have done so by itself. That is tried once: if it
// answers that it cannot, failed is why.
func (e *Engine) giveBack(ctx context.Context, id string, was withheld) (failed, err error) {
	found, err := e.find(ctx, id)
	if err != nil {
		return nil, err
	}
	starts, err := e.wouldRun(ctx, found, was)
	if err == nil {
		err = e.adapter.Restart(ctx, found, was.Restart)
	}
	// it may have ended before that
	if _, tells := e.adapter.(Restarter); err == nil && tells && found.Container.State == engine.Running {
		if found, err = e.find(ctx, id); err == nil {
			starts, err = e.wouldRun(ctx, found, was)
		}
	}
	if err != nil || !starts {
		return nil, err
	}
	if failed = e.adapter.Start(ctx, found.ID); failed != nil {
		failed = fmt.Errorf("have %s start container %s again, which ended while it moved: %w",
			e.adapter.Title(), found.name(), failed)
		_, err = e.find(ctx, id) // who does not answer this either has not answered
	}
	return failed, err
}

// wouldRun tells whether a container that has ended since would have been started again by its
// engine, which was told not to.
func (e *Engine) wouldRun(ctx context.Context, found Container, was withheld) (bool, error) {
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
	return restarter.Restarts(ctx, found, was.Restart, was.Since)
}
