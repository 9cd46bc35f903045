package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// Docker shows the filter (seccomp) of a container only in the specification that it makes at the start, and
// package oci checks that specification before the freeze. To refuse a container earlier, this file states
// what is known of Docker's default profiles. For the system calls of criu/vet and for containers that can
// move, the profiles of Docker 20.10 to 29 differ in one call (moby, profiles/seccomp/default.json, at the
// tags v20.10.24 and v23.0.0): without CAP_SYS_PTRACE, Docker before version 23 forbids process_vm_writev,
// and later versions allow it on Linux 4.8 and later.
const (
	laterAllowed   = "process_vm_writev"
	allowedFrom    = 23
	allowingCap    = "SYS_PTRACE"
	defaultProfile = "name=seccomp,profile="
)

// callObstacles refuses a container whose processes may make system calls that Docker's default profile
// forbids.
func (a *adapter) callObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem, error) {
	if !slices.Contains(d.Passed, laterAllowed) {
		return nil, nil
	}
	info, err := a.api(ctx).Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask Docker for its seccomp profile: %w", err)
	}
	if !forbidsLater(info.Info.ServerVersion, info.Info.SecurityOptions, x.Host) {
		return nil, nil
	}
	return []engine.Problem{checkpoint.CallProblem(title+" "+info.Info.ServerVersion,
		[]string{laterAllowed}, fmt.Sprintf("install Docker %d or later on the target", allowedFrom))}, nil
}

// forbidsLater reports whether a version of Docker forbids the call that later versions allow. It reports
// false if an administrator has given the daemon another profile.
func forbidsLater(version string, options []string, h *container.HostConfig) bool {
	builtin := slices.ContainsFunc([]string{"default", "builtin"}, func(name string) bool {
		return slices.Contains(options, defaultProfile+name)
	})
	traces := slices.ContainsFunc(h.CapAdd, func(name string) bool {
		return strings.TrimPrefix(strings.ToUpper(name), "CAP_") == allowingCap
	})
	major := majorOf(version)
	return builtin && !traces && major > 0 && major < allowedFrom
}
