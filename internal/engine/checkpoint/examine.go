package checkpoint

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/criu/examine"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// examinePause is the time between two looks at a container.
const examinePause = 10 * time.Millisecond

// LookTwice calls look twice and keeps only what look finds both times: a process that is starting or
// ending looks odd for a moment.
func LookTwice(ctx context.Context, look func() ([]engine.Problem, error)) ([]engine.Problem, error) {
	problems, err := look()
	if err != nil || len(problems) == 0 {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(examinePause):
	}
	again, err := look()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(again, func(p engine.Problem) bool { return !slices.Contains(problems, p) }), nil
}

// Examine lists the obstacles to moving these processes, the first of which has made the others: foreign
// processes, and what CRIU cannot dump.
func Examine(ctx context.Context, first int, subject examine.Subject) ([]engine.Problem, error) {
	problems := examineProcesses(first, subject.PIDs)
	problems = append(problems, examineUsers(subject.PIDs)...)
	found, err := examine.Examine(ctx, subject)
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		problems = append(problems, engine.Problem{What: p.String(), Why: p.Why, Remedy: p.Remedy})
	}
	return problems, nil
}

// examineProcesses finds processes that do not descend from the container's first process, and nested
// namespaces.
func examineProcesses(first int, pids []int) []engine.Problem {
	var problems []engine.Problem
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		if err != nil { // it has ended
			continue
		}
		what := fmt.Sprintf("process %d (%s)", process.NamespaceID, process.Name)
		if pid != first && !slices.Contains(pids, process.Parent) {
			problems = append(problems, engine.Problem{
				What: what, Why: "it was started by exec and its parent is outside of the container",
				Remedy: "end it, or wait until it ends",
			})
			continue
		}
		if kind := foreignNamespace(first, pid); kind != "" {
			problems = append(problems, engine.Problem{
				What: what, Why: "it is in a " + kind + " namespace of its own, below the container's",
				Remedy: "end it before the move",
			})
		}
	}
	return problems
}

// capSysResource is CAP_SYS_RESOURCE of include/uapi/linux/capability.h.
const capSysResource = 24

// examineUsers finds processes of users other than root whose limits this process may not read. That needs
// CAP_SYS_RESOURCE (kernel/sys.c, check_prlimit_permission), which some virtual machines withhold even from
// root.
func examineUsers(pids []int) []engine.Problem {
	if capabilities, err := strconv.ParseUint(statusField(os.Getpid(), "CapEff:"), 16, 64); err == nil &&
		capabilities>>capSysResource&1 == 1 {
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
			What: fmt.Sprintf("process %d (%s) of user %s", process.NamespaceID, process.Name, ids[0]),
			Why: "the agent lacks CAP_SYS_RESOURCE, which CRIU needs to read the limits of a process of " +
				"another user than root",
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

// foreignNamespace names a namespace that a process does not share with the container's first process, if
// CRIU cannot move that namespace.
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
