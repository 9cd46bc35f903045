package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// Destroy kills a frozen container and removes all of it, so that no other host notices its end.
func (e *Engine) Destroy(ctx context.Context, id string, stay []string) error {
	defer e.lock(id)()
	place, err := e.find(id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = e.destroy(ctx, place, stay)
	}
	if err != nil {
		return fmt.Errorf("destroy container %.12s: %w", id, err)
	}
	return nil
}

func (e *Engine) destroy(ctx context.Context, place container, stay []string) error {
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
	if err := e.endMonitor(ctx, place); err != nil {
		return err
	}
	if err := e.settle(ctx, place); err != nil {
		return err
	}
	volumes, err := e.goneWith(ctx, d, stay)
	if err != nil {
		return err
	}
	return e.removeFiles(place, volumes)
}

// endMonitor waits for the monitor of a container whose processes are gone, and kills a monitor that does
// not end.
func (e *Engine) endMonitor(ctx context.Context, place container) error {
	monitor, err := monitorProcess(place)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if waitGone(waiting, monitor) == nil {
		return nil
	}
	return errors.Join(ctx.Err(), monitor.Kill())
}
