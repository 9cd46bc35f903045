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

var _ engine.Protector = (*Engine)(nil)

// Protect keeps other programs away from a frozen copy.
func (ds *departures) Protect(
	ctx context.Context, id string, hold func(pids []int) error, held func(),
) error {
	defer ds.catalog.lock(id)()
	place, err := ds.catalog.find(id)
	if errors.Is(err, engine.ErrNotFound) || err == nil && !leaves(place) {
		return nil
	}
	var group *cgroup.Cgroup
	if err == nil {
		group, err = cgroup.Open(place.cgroup())
	}
	if errors.Is(err, fs.ErrNotExist) && held == nil {
		return nil // a repeated call after a reboot: there is no copy
	}
	if err == nil {
		err = checkpoint.Protect(ctx, group, place.spared(), hold, held)
	}
	if err != nil {
		return fmt.Errorf("protect the frozen copy of container %.12s: %w", id, err)
	}
	return nil
}
