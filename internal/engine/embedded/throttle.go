package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// leastCPUs is the smallest part of a processor to which a container is throttled: it must be able to answer at all.
const leastCPUs = 0.01

// CPUTime is how much processor time a container has used.
func (e *Engine) CPUTime(_ context.Context, id string) (time.Duration, error) {
	place, err := e.find(id)
	if err != nil {
		return 0, err
	}
	group, err := kernel.OpenCgroup(place.cgroup())
	if err != nil {
		return 0, fmt.Errorf("processor time of container %.12s: %w", id, err)
	}
	used, err := group.CPUTime()
	return used, unsupported(err)
}

// Throttle lets a container use so many processors. What it may use otherwise is in its definition, so ending it needs
// no memory of how it was.
func (e *Engine) Throttle(_ context.Context, id string, cpus float64) error {
	one, err := e.inspect(id)
	if errors.Is(err, engine.ErrNotFound) && cpus == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	limit := one.Definition.Limits.CPUs
	if cpus > 0 && (limit == 0 || cpus < limit) {
		limit = max(leastCPUs, cpus)
	}
	group, err := kernel.OpenCgroup(e.paths.of(one.Definition.ID).cgroup())
	if err == nil {
		err = group.LimitCPU(limit)
	}
	if cpus == 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrUnsupported)) {
		return nil // it has ended, or could never be throttled
	}
	if err != nil {
		return fmt.Errorf("throttle container %s: %w", one.Definition.Name, unsupported(err))
	}
	return nil
}

// unsupported makes of the kernel's error the one of the contract.
func unsupported(err error) error {
	if errors.Is(err, kernel.ErrUnsupported) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}
