package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/nsstate"
)

// interfaceName is the engines' name for a container's interface.
const interfaceName = "eth0"

// Surroundings describe a container's network namespace.
type Surroundings struct {
	PID     int   // of the first process
	PIDs    []int // of all processes
	Network engine.Network
	Spec    *specs.Spec // given to the runtime; nil if there is none
	// Alone means that only the container makes anything in the namespace.
	Alone bool
	// System means that the first process is that of a whole system, which changes settings as it starts.
	System bool
}

// ExamineNetwork lists what was made in a container's network namespace and would be missing at the target.
// It checks rules of the packet filter in each namespace, because they may have been made from outside. It
// checks everything else only where the container itself must have made it. An engine may be configured to
// give containers further routes and settings, but few containers also have NET_ADMIN.
func ExamineNetwork(ctx context.Context, s Surroundings) ([]engine.Problem, error) {
	path := fmt.Sprintf("/proc/%d/ns/net", s.PID)
	if own, err := isOwn(path); err != nil || own {
		return nil, err
	}
	found, err := nsstate.Filters(ctx, path)
	if err == nil && (s.Alone || s.administers()) {
		var others []nsstate.Finding
		others, err = nsstate.Others(ctx, path, s.expected())
		found = append(found, others...)
	}
	var problems []engine.Problem
	for _, f := range found {
		problems = append(problems, engine.Problem(f))
	}
	return problems, err
}

// isOwn reports whether a namespace is the node's. An ended process has no namespace.
func isOwn(path string) (bool, error) {
	its, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	own, err := os.Stat("/proc/self/ns/net")
	return err == nil && os.SameFile(its, own), err
}

// expected returns what the engine makes in the namespace.
func (s Surroundings) expected() nsstate.Expected {
	e := nsstate.Expected{AnySettings: s.System, ReadOnly: !s.administers(), Settings: map[string]string{}}
	if s.Network.Address.IsValid() {
		e.Device, e.Address = interfaceName, s.Network.Address
	}
	if s.Network.Pooled() {
		e.Gateway, e.Settings = network.Gateway(), network.Settings()
	}
	if s.Spec != nil {
		maps.Copy(e.Settings, s.Spec.Linux.Sysctl)
	}
	return e
}

// capNetAdmin is CAP_NET_ADMIN of include/uapi/linux/capability.h.
const capNetAdmin = 12

// administers reports whether the container, or one of its processes, may change its network: exec can add
// capabilities.
func (s Surroundings) administers() bool {
	if s.Spec != nil && s.Spec.Process != nil && s.Spec.Process.Capabilities != nil {
		if slices.Contains(s.Spec.Process.Capabilities.Bounding, "CAP_NET_ADMIN") {
			return true
		}
	}
	return slices.ContainsFunc(s.PIDs, func(pid int) bool {
		for _, name := range []string{"CapBnd:", "CapPrm:"} {
			capabilities, err := strconv.ParseUint(statusField(pid, name), 16, 64)
			if err == nil && capabilities>>capNetAdmin&1 == 1 {
				return true
			}
		}
		return false
	})
}
