package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// ResumeProcesses resumes a container that a departure froze, whether or not its engine answers.
func (ds *departures) ResumeProcesses(ctx context.Context, id string) error {
	unlock, err := ds.locks.LockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(ds.records.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !was.Resumed {
		was.Resumed = true
		// best effort: the container must continue even on a full disk
		_ = save(ds.records.departurePath(id), was)
	}
	if err == nil {
		err = ds.resume(ctx, id, was)
	}
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	return nil
}

func (ds *departures) resume(ctx context.Context, id string, was departureRecord) error {
	if err := checkpoint.Unprotect(ds.records.sparedPath(id)); err != nil {
		return err
	}
	return was.resume(ctx)
}

// Resume resumes a container that a departure froze. It does so before it queries the engine.
func (ds *departures) Resume(ctx context.Context, id string) error {
	unlock, err := ds.locks.LockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(ds.records.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		if durable.Exists(ds.records.arrivalPath(id)) {
			return nil
		}
		return ds.records.forget(id) // what was made for a move that failed before the freeze
	}
	if err == nil {
		err = ds.resume(ctx, id, was)
	}
	if err == nil {
		err = ds.starts.restartsAgain(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	return nil
}

// Destroy kills a frozen container and makes the engine remove all of it.
func (ds *departures) Destroy(ctx context.Context, id string, stay []string) error {
	unlock, err := ds.locks.LockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("destroy container %.12s: %w", id, err)
	}
	defer unlock()
	if err := ds.destroy(ctx, id, stay); err != nil {
		return fmt.Errorf("destroy container %.12s: %w", id, err)
	}
	return nil
}

func (ds *departures) destroy(ctx context.Context, id string, stay []string) error {
	if err := ds.remains.kill(ctx, id); err != nil {
		return err
	}
	found, err := ds.lookup.find(ctx, id)
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if err == nil {
		if err := ds.remains.removeGone(ctx, found, stay); err != nil {
			return err
		}
	}
	ds.held.drop(id)
	return ds.remains.forgetGone(ctx, id)
}
