package checkpoint

import (
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// leastCPUs is the smallest part of a processor to which a container is throttled: it must still be able to
// answer.
const leastCPUs = 0.01

// Throttle limits the processes of a cgroup to cpus processors, or to their ordinary limit if that is less;
// 0 ends the throttling. The caller knows the ordinary limit, so Throttle need not remember it.
func Throttle(group *cgroup.Cgroup, limit, cpus float64) error {
	if cpus > 0 && (limit == 0 || cpus < limit) {
		limit = max(leastCPUs, cpus)
	}
	return group.LimitCPU(limit)
}

// Unsupported converts the kernel's error to the contract's.
func Unsupported(err error) error {
	if errors.Is(err, kernel.ErrUnsupported) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}
