package oci

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// Memory reports how much of a running container's memory has been filled.
func (r *arrivals) Memory(ctx context.Context, id string) (memory.FillReport, error) {
	engineID, err := r.lookup.engineID(id)
	if err != nil {
		return memory.FillReport{}, err
	}
	dir, err := r.lookup.restoreDir(engineID)
	if err != nil {
		return memory.FillReport{}, err
	}
	report, err := pager.ReadReport(dir.Memory())
	if err != nil {
		return memory.FillReport{}, fmt.Errorf("look at the memory of container %.12s: %w", id, err)
	}
	return report, nil
}

// RemotePages connects to the pager of a container.
func (r *arrivals) RemotePages(ctx context.Context, id string) (memory.RemotePages, error) {
	engineID, err := r.lookup.engineID(id)
	if err != nil {
		return nil, err
	}
	dir, err := r.lookup.restoreDir(engineID)
	if err != nil {
		return nil, err
	}
	return checkpoint.RemotePages(ctx, id, dir.RemotePages())
}
