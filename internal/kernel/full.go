package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
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

// fullProcesses finds such processes of a group.
func (c *Cgroup) fullProcesses() ([]fullProcess, error) {
	pids, err := c.Procs()
	if err != nil {
		return nil, err
	}
	var found []fullProcess
	for _, pid := range pids {
		limit, ok := descriptorLimit(pid)
		if one := (fullProcess{pid, limit}); ok && one.goesOn() {
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
	if one := (fullProcess{pid, limit}); ok && one.goesOn() {
		return fmt.Errorf("%w: %s", ErrUntraceable, one)
	}
	return nil
}

// descriptorLimit reads the limit of a process. Without CAP_SYS_RESOURCE, neither this process nor CRIU can
// read the limits of other users' processes, and such processes are refused before.
func descriptorLimit(pid int) (limit uint64, ok bool) {
	var both unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &both)
	return both.Cur, err == nil
}

// goesOn reports whether all numbers below the limit are still in use. An ended process uses none.
func (p fullProcess) goesOn() bool {
	limit, ok := descriptorLimit(p.pid)
	if !ok || limit > smallLimit {
		return false
	}
	if state, err := ReadProcess(p.pid); err != nil || state.State == 'Z' || state.Exiting {
		return false
	}
	for fd := range limit {
		_, err := os.Lstat("/proc/" + strconv.Itoa(p.pid) + "/fd/" + strconv.FormatUint(fd, 10))
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

func (p fullProcess) String() string {
	return fmt.Sprintf("process %d has no free descriptor below its limit (RLIMIT_NOFILE %d), "+
		"but CRIU must open one in every process that it dumps", p.pid, p.limit)
}
