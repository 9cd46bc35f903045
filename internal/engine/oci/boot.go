package oci

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
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
	err := durable.Load(e.records.camePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return e.lookup.orphanError(id)
	}
	if err != nil {
		return err
	}
	failed, err := e.starts.giveBack(ctx, id, was.withheld)
	if errors.Is(err, engine.ErrNotFound) { // it has been removed
		_, err = e.lookup.whileUnused(ctx, id, was.EngineID,
			func() error { return e.adapter.Gone(was.EngineID) })
	}
	if err == nil {
		err = durable.Remove(e.records.camePath(id))
	}
	return errors.Join(failed, err)
}
