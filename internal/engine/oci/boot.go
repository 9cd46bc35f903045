package oci

import (
	"context"
	"errors"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

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
