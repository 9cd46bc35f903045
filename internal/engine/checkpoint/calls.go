package checkpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/criu/vet"
	"github.com/godwit/godwit/internal/engine"
)

// PassedCalls lists the dangerous system calls that the processes of a running container may make: those
// that the filter of its specification lets through (engine.Definition.Passed). nil: not known. The kernel
// shows the filters themselves only of stopped processes.
func PassedCalls(first int, filter *specs.LinuxSeccomp) []string {
	filters := func(pid int) filtering {
		return filtering{mode: statusField(pid, "Seccomp:"), filters: statusField(pid, "Seccomp_filters:")}
	}
	return passedCalls(filters(first), filters(os.Getpid()), filter)
}

// filtering holds what /proc/PID/status says about a process's filters.
type filtering struct{ mode, filters string }

// passedCalls returns nil if the first process may have added a filter of its own, which its children
// inherit: it then has more filters than this process and one of its engine. Linux counts filters from 5.9
// on;
// before that, nothing is known.
func passedCalls(first, own filtering, filter *specs.LinuxSeccomp) []string {
	if first.mode == "0" {
		return vet.Passed(nil)
	}
	count, err := strconv.Atoi(first.filters)
	around, _ := strconv.Atoi(own.filters) // counted if the first process's filters are
	if first.mode != "2" || filter == nil || err != nil || count > around+1 {
		return nil
	}
	return vet.Passed(filter)
}

// CallObstacles refuses a container whose processes may make dangerous system calls that are forbidden by the
// filter of this node's engine. Without it, the restore proxy would refuse the images during the freeze.
func CallObstacles(title string, filter *specs.LinuxSeccomp, passed []string) []engine.Problem {
	calls := vet.Refused(filter, passed)
	if len(calls) == 0 {
		return nil
	}
	return []engine.Problem{CallProblem(title, calls, "choose a target with the version of "+title+" that "+
		"started the container, or start the container anew on the target")}
}

// CallProblem says which system calls the seccomp profile of an engine of this node forbids.
func CallProblem(title string, calls []string, remedy string) engine.Problem {
	const most = 3
	names := strings.Join(calls[:min(len(calls), most)], ", ")
	if more := len(calls) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return engine.Problem{
		What: "seccomp profile of " + title + " at the target",
		Why: "it forbids " + names + ", which the container's processes may call: they keep the profile " +
			"under which they were started",
		Remedy: remedy,
	}
}

// AgreeCalls is CallObstacles as an error, for engines that show their filter only after they have started
// the container, which is before the freeze.
func AgreeCalls(title string, spec *specs.Spec, passed []string) error {
	if spec.Linux == nil {
		return nil
	}
	for _, p := range CallObstacles(title, spec.Linux.Seccomp, passed) {
		return fmt.Errorf("%s: %s; %s", p.What, p.Why, p.Remedy)
	}
	return nil
}

// KnownCalls returns those of the system calls that came with a container that this node knows, for the
// container's next move: the processes keep their filters, whatever the specification says here. The result
// is never nil; it is empty if the container came without a list.
func KnownCalls(passed []string) []string {
	known := slices.Clone(passed[:min(len(passed), engine.MaxPassedCalls)])
	known = slices.DeleteFunc(known, func(name string) bool {
		return !slices.Contains(vet.Passed(nil), name)
	})
	return append([]string{}, known...)
}
