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

func (e *Engine) camePath(id string) string {
	return filepath.Join(e.config.StateDir, "engines", e.Name()+"-came", id)
}

// endedWith reports whether a container that ran in this boot of the machine has ended with it.
func endedWith(boot string) (bool, error) {
	now, err := kernel.BootID()
	return boot != "" && boot != now, err
}

// Settled makes the engine treat an arrived container as it was treated at the source: there is no other
// copy any more. It fails for a container that runs without its engine, for as long as it runs: see orphan.
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

// giveBack gives a container back to its engine, which was told not to start it. If the container has ended
// meanwhile and the engine would have restarted it, giveBack starts it. It tries that once; failed is the
// engine's reason if the engine refuses.
func (e *Engine) giveBack(ctx context.Context, id string, was withheld) (failed, err error) {
	found, err := e.find(ctx, id)
	if err != nil {
		return nil, err
	}
	starts, err := e.wouldRun(ctx, found, was)
	if err == nil {
		err = e.adapter.Restart(ctx, found, was.Restart)
	}
	// the container may have ended before that
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
		_, err = e.find(ctx, id) // without this answer, the start was not answered either
	}
	return failed, err
}

// wouldRun reports whether the engine would have restarted a container that has ended while its restart
// policy was withheld.
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
