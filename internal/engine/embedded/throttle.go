package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// CPUTime returns the processor time that a container has used.
func (e *Engine) CPUTime(_ context.Context, id string) (time.Duration, error) {
	place, err := e.find(id)
	if err != nil {
		return 0, err
	}
	group, err := cgroup.Open(place.cgroup())
	if err != nil {
		return 0, fmt.Errorf("processor time of container %.12s: %w", id, err)
	}
	used, err := group.CPUTime()
	return used, checkpoint.Unsupported(err)
}

// Throttle limits a container to this many processors. Its ordinary limit is in its definition, so Throttle
// need not remember it.
func (e *Engine) Throttle(_ context.Context, id string, cpus float64) error {
	ctr, err := e.inspect(id)
	if errors.Is(err, engine.ErrNotFound) && cpus == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	group, err := cgroup.Open(e.paths.of(ctr.Definition.ID).cgroup())
	if err == nil {
		err = checkpoint.Throttle(group, ctr.Definition.Limits.CPUs, cpus)
	}
	if cpus == 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrUnsupported)) {
		return nil // the container has ended, or could never be throttled
	}
	if err != nil {
		return fmt.Errorf("throttle container %s: %w", ctr.Definition.Name, checkpoint.Unsupported(err))
	}
	return nil
}
