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
func (r *arrivals) Arrived(ctx context.Context, id string) (engine.Outcome, error) {
	if !idPattern.MatchString(id) {
		return "", r.lookup.unknown(id)
	}
	r.waiting.End(id)
	defer r.locks.Lock(id)()
	var was arrivalRecord
	err := durable.Load(r.records.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		_, err := r.lookup.find(ctx, id)
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
	outcome, err := r.endings.outcome(ctx, id, was.EngineID)
	if err == nil && outcome == engine.Ran {
		err = r.endings.settle(ctx, id)
	}
	if err != nil {
		return "", fmt.Errorf("find out about the arrival of container %.12s: %w", id, err)
	}
	return outcome, nil
}

// Discard removes an arrival that never ran.
func (r *arrivals) Discard(ctx context.Context, id string) error {
	if !idPattern.MatchString(id) {
		return r.lookup.unknown(id)
	}
	r.waiting.End(id)
	defer r.locks.Lock(id)()
	return r.endings.discard(ctx, id)
}

// Salvage ends an arrival that never ran, and saves nothing of it.
func (r *arrivals) Salvage(ctx context.Context, id string, _ func(files.Tree) error) error {
	if !idPattern.MatchString(id) {
		return r.lookup.unknown(id)
	}
	r.waiting.End(id)
	defer r.locks.Lock(id)()
	_, err := r.endings.neverRan(ctx, id)
	return err
}
