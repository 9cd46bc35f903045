package checkpoint

import (
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/kernel"
)

// leastCPUs is the smallest part of a processor to which a container is throttled: it must be able
// to answer at all.
const leastCPUs = 0.01

// Throttle lets the processes of a cgroup use so many processors, or as many as they may use anyway
// if that is less; 0 ends it. What they may use otherwise is the caller's to know, so ending it
// needs no memory of how it was.
func Throttle(group *kernel.Cgroup, limit, cpus float64) error {
	if cpus > 0 && (limit == 0 || cpus < limit) {
		limit = max(leastCPUs, cpus)
	}
	return group.LimitCPU(limit)
}

// Unsupported makes of the kernel's error the one of the contract.
func Unsupported(err error) error {
	if errors.Is(err, kernel.ErrUnsupported) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}
