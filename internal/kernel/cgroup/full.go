package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// CRIU opens a memfd and a socket in each process that it dumps (compel/src/lib/infect.c of 4.2). In a
// process that has used up RLIMIT_NOFILE it gets EMFILE ("Can't create memfd in victim") and gives up the
// whole dump. sshd's sandbox sets such a limit for the process that authenticates a new client.

// smallLimit bounds the limits that are checked: sandboxes set 0 or 1, and checking thousands of
// descriptors takes too long in a freeze.
const smallLimit = 64

// fullProcess is a process that has used up its limit of descriptors.
type fullProcess struct {
	pid   int
	limit uint64
}

// UsedUpDescriptors is a process that has used up its limit of descriptors (RLIMIT_NOFILE).
type UsedUpDescriptors struct {
	Limit uint64
	// Sandboxed: the process cannot raise the limit, and gets no privileges by execve(2). sshd does that to
	// the process that authenticates a client until that is done; other programs do it for life.
	Sandboxed bool
	Age       time.Duration // since the process started
	Remedy    string        // what the user can do
}

// UsedUp reports whether a process has used up its limit of descriptors at this moment. It stops nothing.
func UsedUp(pid int) (UsedUpDescriptors, bool) {
	limit, ok := descriptorLimit(pid)
	one := fullProcess{pid, limit.Cur}
	if !ok || !one.goesOn() {
		return UsedUpDescriptors{}, false
	}
	status, _ := kernel.ReadProc(pid, "status") // gone: not sandboxed, and the next look finds nothing
	return UsedUpDescriptors{
		Limit:     limit.Cur,
		Age:       kernel.AgeOf(pid),
		Sandboxed: limit.Max <= smallLimit && kernel.StatusNumber(status, "NoNewPrivs") == 1,
		Remedy:    one.remedy(),
	}, true
}

// fullProcesses finds such processes of a group.
func (c *Cgroup) fullProcesses() ([]fullProcess, error) {
	pids, err := c.Procs()
	if err != nil {
		return nil, err
	}
	var found []fullProcess
	for _, pid := range pids {
		limit, ok := descriptorLimit(pid)
		if one := (fullProcess{pid, limit.Cur}); ok && one.goesOn() {
			found = append(found, one)
		}
	}
	return found, nil
}

// LacksDescriptors reports whether a process of the group has used up its limit of descriptors, so that it
// cannot be dumped now.
func (c *Cgroup) LacksDescriptors() (bool, error) {
	found, err := c.fullProcesses()
	return len(found) > 0, err
}

// CheckDescriptor returns an error (ErrUntraceable) if a process has used up its limit of descriptors: it
// can get no other descriptor, and stopping it may kill it (see awaitSandboxes).
func CheckDescriptor(pid int) error {
	limit, ok := descriptorLimit(pid)
	if one := (fullProcess{pid, limit.Cur}); ok && one.goesOn() {
		return fmt.Errorf("%w: %s", kernel.ErrUntraceable, one)
	}
	return nil
}

// descriptorLimit reads the limit of a process. Without CAP_SYS_RESOURCE, neither this process nor CRIU can
// read the limits of other users' processes, and such processes are refused before.
func descriptorLimit(pid int) (limit unix.Rlimit, ok bool) {
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit)
	return limit, err == nil
}

// goesOn reports whether all numbers below the limit are still in use. An ended process uses none.
func (p fullProcess) goesOn() bool {
	limit, ok := descriptorLimit(p.pid)
	if !ok || limit.Cur > smallLimit {
		return false
	}
	if state, err := kernel.ReadProcess(p.pid); err != nil || state.State == 'Z' || state.Exiting {
		return false
	}
	for fd := range limit.Cur {
		_, err := os.Lstat("/proc/" + strconv.Itoa(p.pid) + "/fd/" + strconv.FormatUint(fd, 10))
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

func (p fullProcess) String() string {
	return fmt.Sprintf("%s has no free descriptor below its limit (RLIMIT_NOFILE %d), "+
		"but CRIU must open one in every process that it dumps", describe(p.pid), p.limit)
}

// moreDescriptors is by how much the limit should be raised: CRIU opens a few.
const moreDescriptors = 64

// remedy is for prlimit(1): a value of its own for each of the two limits, of which the hard one stays if it
// is high enough.
func (p fullProcess) remedy() string {
	limit, _ := descriptorLimit(p.pid)
	soft := p.limit + moreDescriptors
	return fmt.Sprintf("try again when the process has ended or closed a descriptor, or raise its limit on "+
		"this node: prlimit --pid %d --nofile=%d:%d", p.pid, soft, max(soft, limit.Max))
}

// describe names a process as its container knows it, and by its command.
func describe(pid int) string {
	process, err := kernel.ReadProcess(pid)
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", process.NamespaceID, process.Name)
}
