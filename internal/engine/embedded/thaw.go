package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/engine/records"
	"github.com/godwit/godwit/internal/kernel"
)

// Thaw lets a container that a departure froze go on.
func (e *Engine) Thaw(ctx context.Context, id string) error {
	defer e.lock(id)()
	place, err := e.find(id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := thaw(ctx, place); err != nil {
		return fmt.Errorf("thaw container %.12s: %w", id, err)
	}
	return nil
}

func thaw(ctx context.Context, place container) error {
	if !records.Exists(place.departure()) {
		return forgetDeparture(place)
	}
	if err := moving.Unprotect(place.spared()); err != nil {
		return err
	}
	group, err := kernel.OpenCgroup(place.cgroup())
	if err == nil {
		err = moving.Thaw(ctx, group)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return forgetDeparture(place)
}

// forgetDeparture removes the record that a container leaves, for good. A container that was destroyed
// has none.
func forgetDeparture(place container) error {
	if err := records.Remove(place.oldDeparture()); err != nil {
		return err
	}
	err := kernel.RemoveDurable(place.departure())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
