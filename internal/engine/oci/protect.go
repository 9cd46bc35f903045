package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

var _ engine.Protector = (*Engine)(nil)

// Protect keeps other programs away from a frozen copy.
func (ds *departures) Protect(
	ctx context.Context, id string, hold func(pids []int) error, held func(),
) error {
	unlock, err := ds.locks.LockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("protect the frozen copy of container %.12s: %w", id, err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(ds.records.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (was.Resumed || !was.First.Alive()) {
		return nil
	}
	var group *cgroup.Cgroup
	if err == nil {
		group, err = cgroup.Of(was.First.PID)
	}
	if err == nil {
		err = checkpoint.Protect(ctx, group, ds.records.sparedPath(id), hold, held)
	}
	if err != nil {
		return fmt.Errorf("protect the frozen copy of container %.12s: %w", id, err)
	}
	return nil
}
