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

// interfaceName is how engines call a container's interface.
const interfaceName = "eth0"

// Surroundings are what is known of a container's network namespace.
type Surroundings struct {
	PID     int   // the first process
	PIDs    []int // all of them
	Network engine.Network
	Spec    *specs.Spec // what the runtime was told; nil if there is none
	// Alone tells that nobody but the container makes anything in the namespace.
	Alone bool
	// System tells that the first process is that of a whole system, which sets settings as it starts.
	System bool
}

// ExamineNetwork lists what was made in a container's network namespace and would not be at the
// target. Rules of the packet filter are looked for in each, because they may have been made from
// outside. The rest is looked for where only the container can have made it: an engine may be
// configured to give containers further routes and settings, but containers that also have
// NET_ADMIN are few.
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

// isOwn tells whether a namespace is that of the node; of a process that has ended there is none.
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

// expected is what the engine makes in the namespace.
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

// administers tells whether the container may change its network, or a process of it may: exec
// gives capabilities, too.
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
