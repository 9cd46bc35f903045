package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// Resume resumes a container that a departure froze.
func (ds *departures) Resume(ctx context.Context, id string) error {
	defer ds.catalog.lock(id)()
	place, err := ds.catalog.find(id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := resume(ctx, place); err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	return nil
}

// ResumeOf is Resume for a container that leaves by this migration, which was undone. It leaves a container
// alone that leaves by another migration, which may have begun since the caller looked.
func (ds *departures) ResumeOf(ctx context.Context, id, migration string) error {
	defer ds.catalog.lock(id)()
	place, err := ds.catalog.find(id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	leave, err := leavingOf(place)
	if err == nil && leave != nil && leave.Migration == migration {
		err = resume(ctx, place)
	}
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	return nil
}

func resume(ctx context.Context, place container) error {
	if !leaves(place) {
		return nil
	}
	if err := checkpoint.Unprotect(place.spared()); err != nil {
		return err
	}
	group, err := cgroup.Open(place.cgroup())
	if err == nil {
		err = checkpoint.Resume(ctx, group)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return forgetDeparture(place)
}
