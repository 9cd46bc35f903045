package embedded

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// Destroy kills a frozen container and removes all of it, so that no other host notices its end.
func (ds *departures) Destroy(ctx context.Context, id string, stay []string) error {
	defer ds.catalog.lock(id)()
	place, err := ds.catalog.find(id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = ds.destroy(ctx, place, stay)
	}
	if err != nil {
		return fmt.Errorf("destroy container %.12s: %w", id, err)
	}
	return nil
}

func (ds *departures) destroy(ctx context.Context, place container, stay []string) error {
	var d engine.Definition
	if err := durable.Load(place.definition(), &d); err != nil {
		return err
	}
	spec, err := loadSpec(place)
	if err != nil {
		return err
	}
	if err := checkpoint.TakeLinksDown(netnsOf(spec)); err != nil {
		return err
	}
	// A monitor that does not answer cannot record the end either: settle removes its files.
	_ = askMonitor(ctx, place, opRetire)
	if err := killCgroup(ctx, place); err != nil {
		return err
	}
	if err := ds.processes.endMonitor(ctx, place); err != nil {
		return err
	}
	if err := ds.processes.settle(ctx, place); err != nil {
		return err
	}
	volumes, err := ds.volumes.goneWith(ctx, d, stay)
	if err != nil {
		return err
	}
	return removeFiles(place, volumes)
}
