package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// examinePause is the time between two looks at a container.
const examinePause = 10 * time.Millisecond

// Examine lists what stands against moving this running container. A process that is just beginning or ending looks
// odd for a moment, so only what is seen twice counts.
func (e *Engine) Examine(ctx context.Context, id string) ([]engine.Problem, error) {
	problems, err := e.examine(ctx, id)
	if err != nil || len(problems) == 0 {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(examinePause):
	}
	again, err := e.examine(ctx, id)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(again, func(p engine.Problem) bool { return !slices.Contains(problems, p) }), nil
}

// examine looks once.
func (e *Engine) examine(ctx context.Context, id string) ([]engine.Problem, error) {
	one, err := e.running(id)
	if err != nil {
		return nil, err
	}
	place := e.paths.of(id)
	group, err := kernel.OpenCgroup(place.cgroup())
	if err != nil {
		return nil, fmt.Errorf("examine container %s: %w", one.Definition.Name, err)
	}
	pids, err := group.Procs()
	if err != nil {
		return nil, fmt.Errorf("examine container %s: %w", one.Definition.Name, err)
	}
	problems := examineProcesses(one, pids)
	problems = append(problems, examineUsers(pids)...)
	problems = append(problems, examineMonitor(place)...)
	filling, err := examineMemory(place)
	if err != nil {
		return nil, err
	}
	problems = append(problems, filling...)
	found, err := examineCriu(ctx, place, one, pids)
	return append(problems, found...), err
}

// examineCriu asks what CRIU cannot dump.
func examineCriu(ctx context.Context, place container, one engine.Container, pids []int) ([]engine.Problem, error) {
	x, err := decodeExtra(one.Definition)
	if err != nil {
		return nil, err
	}
	spec, err := loadSpec(place)
	if err != nil {
		return nil, err
	}
	externals, err := criu.ExternalFor(spec, place.rootfs(), one.PID)
	if err != nil {
		return nil, fmt.Errorf("examine container %s: %w", one.Definition.Name, err)
	}
	found, err := criu.Examine(ctx, criu.Subject{PIDs: pids, Stdio: x.Stdio, Mounts: externals.Mounts})
	if err != nil {
		return nil, fmt.Errorf("examine container %s: %w", one.Definition.Name, err)
	}
	var problems []engine.Problem
	for _, p := range found {
		problems = append(problems, engine.Problem{What: p.String(), Why: p.Why, Remedy: p.Remedy})
	}
	return problems, nil
}

// examineProcesses finds processes that did not come from the container's first one, and namespaces within.
func examineProcesses(one engine.Container, pids []int) []engine.Problem {
	var problems []engine.Problem
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		if err != nil { // ended meanwhile
			continue
		}
		what := fmt.Sprintf("process %d (%s)", process.NamespaceID, process.Name)
		if pid != one.PID && !slices.Contains(pids, process.Parent) {
			problems = append(problems, engine.Problem{
				What: what, Why: "it was started by exec and its parent is outside of the container", Remedy: "end it, or wait until it ends",
			})
			continue
		}
		if kind := foreignNamespace(one.PID, pid); kind != "" {
			problems = append(problems, engine.Problem{
				What: what, Why: "it is in a " + kind + " namespace of its own, below the container's", Remedy: "end it before the move",
			})
		}
	}
	return problems
}

// capSysResource is CAP_SYS_RESOURCE of include/uapi/linux/capability.h.
const capSysResource = 24

// examineUsers finds processes of other users than root where this process may not read their limits: that takes
// CAP_SYS_RESOURCE (kernel/sys.c, check_prlimit_permission), which some virtual machines withhold even from root.
func examineUsers(pids []int) []engine.Problem {
	if capabilities, err := strconv.ParseUint(statusField(os.Getpid(), "CapEff:"), 16, 64); err == nil && capabilities>>capSysResource&1 == 1 {
		return nil
	}
	var problems []engine.Problem
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		ids := strings.Fields(statusField(pid, "Uid:") + " " + statusField(pid, "Gid:"))
		other := slices.IndexFunc(ids, func(id string) bool { return id != "0" })
		if err != nil || other < 0 {
			continue
		}
		problems = append(problems, engine.Problem{
			What:   fmt.Sprintf("process %d (%s) of user %s", process.NamespaceID, process.Name, ids[0]),
			Why:    "the agent has not CAP_SYS_RESOURCE, without which CRIU cannot read the limits of a process that is not root's",
			Remedy: "run the agent with all capabilities, or the container as root",
		})
	}
	return problems
}

// statusField reads one field of /proc/PID/status; "" if the process is gone.
func statusField(pid int, name string) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// foreignNamespace names a namespace in which a process is and the container's first process is not, if CRIU cannot
// carry that.
func foreignNamespace(init, pid int) string {
	for _, kind := range []string{"pid", "user", "ipc", "uts", "net"} {
		a, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", init, kind))
		b, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err == nil && err2 == nil && a != b {
			return kind
		}
	}
	return ""
}

// examineMonitor finds out whether the container's output can be carried.
func examineMonitor(place container) []engine.Problem {
	var now liveState
	err := loadJSON(place.runtime(), &now)
	if err == nil && !now.Monitor.alive() {
		err = errors.New("it has been killed")
	}
	if err == nil {
		return nil
	}
	return []engine.Problem{{
		What: "the container's monitor", Why: err.Error(), Remedy: "stop the container and start it again",
	}}
}
