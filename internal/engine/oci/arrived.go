package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// Arrived returns the outcome of an arrival, also after the agent crashed.
func (e *Engine) Arrived(ctx context.Context, id string) (engine.Outcome, error) {
	if !idPattern.MatchString(id) {
		return "", e.lookup.unknown(id)
	}
	e.arrivals.End(id)
	defer e.lock(id)()
	var was arrivalRecord
	err := durable.Load(e.records.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		_, err := e.lookup.find(ctx, id)
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
	outcome, err := e.endings.outcome(ctx, id, was.EngineID)
	if err == nil && outcome == engine.Ran {
		err = e.endings.settle(ctx, id)
	}
	if err != nil {
		return "", fmt.Errorf("find out about the arrival of container %.12s: %w", id, err)
	}
	return outcome, nil
}

// Discard removes an arrival that never ran.
func (e *Engine) Discard(ctx context.Context, id string) error {
	if !idPattern.MatchString(id) {
		return e.lookup.unknown(id)
	}
	e.arrivals.End(id)
	defer e.lock(id)()
	return e.endings.discard(ctx, id)
}

// Salvage ends an arrival that never ran, and saves nothing of it.
func (e *Engine) Salvage(ctx context.Context, id string, _ func(files.Tree) error) error {
	if !idPattern.MatchString(id) {
		return e.lookup.unknown(id)
	}
	e.arrivals.End(id)
	defer e.lock(id)()
	_, err := e.endings.neverRan(ctx, id)
	return err
}
