package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/guard"
)

// staying are the places of volumes that stay and may be on storage of both nodes. A tmpfs is not.
func (m *Mover) staying(moving engine.Definition) (places []string, err error) {
	for _, v := range moving.Volumes {
		if !v.Stays || v.Sort() == engine.Tmpfs {
			continue
		}
		place, err := m.engines.VolumePath(v)
		if err != nil {
			return nil, err
		}
		places = append(places, place)
	}
	return places, nil
}

// patiently waits for what may never end, because it is the kernel that waits for a file server, as
// long as somebody wants it.
func patiently(ctx context.Context, do func() error) error {
	select {
	case err := <-guard.Go(do):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// forgetPatience bounds how long a file server may take until this node looks anew at what is on it.
const forgetPatience = 10 * time.Second

// Forget makes this node look anew at volumes that another one has written to, or will. Where
// that does not work files are looked at anew when they are opened. A server that does not answer
// keeps no migration from its end.
func (m *Mover) Forget(ctx context.Context, moving engine.Definition) {
	ctx, cancel := context.WithTimeout(ctx, forgetPatience)
	defer cancel()
	places, err := m.staying(moving)
	for _, place := range places {
		if err == nil {
			err = patiently(ctx, func() error { return shared.Take(place) })
		}
	}
	if err != nil {
		m.log.Warn("cannot refresh shared storage", "container", moving.Name, "error", err)
	}
}

// GiveBack lets another node find in volumes that both mount what a container without processes has
// written there.
func (m *Mover) GiveBack(ctx context.Context, definition engine.Definition) error {
	places, err := m.staying(definition)
	for _, place := range places {
		err = errors.Join(err, patiently(ctx, func() error { return shared.Release(ctx, place, nil) }))
	}
	return err
}

// release hands the volumes that stay to another node: when it returns, all that the container has written
// is where that node finds it, and nothing of it is written later.
func (m *Mover) release(ctx context.Context, moving engine.Definition, stopped bool) error {
	places, err := m.staying(moving)
	if err != nil || len(places) == 0 {
		return err
	}
	var pids []int
	if !stopped {
		if pids, err = m.engines.EngineFor(moving).Processes(ctx, moving.ID); err != nil {
			return err
		}
	}
	for _, place := range places {
		if err := patiently(ctx, func() error { return shared.Release(ctx, place, pids) }); err != nil {
			return fmt.Errorf("hand over shared storage at %s: %w", place, err)
		}
	}
	return nil
}
