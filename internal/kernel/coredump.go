package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NoCoreDump keeps the kernel from writing a core dump of this process in any case, because it may hold
// memory and environments of containers. Unlike a limit (RLIMIT_CORE), which a core_pattern(5) with a
// program ignores, this is not inherited by programs that it starts, and so not by containers: execve(2)
// resets it. Only root can read such a process's files in /proc.
func NoCoreDump() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("disable core dumps of this process: %w", err)
	}
	return nil
}

// LimitCoreDump keeps the kernel from writing a core dump of a process that runs another program, and of
// programs that it starts from now on, unless core_pattern(5) passes dumps to a program. The process may
// raise its limit again.
func LimitCoreDump(pid int) error {
	var limit unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &limit)
	if err == nil {
		limit.Cur = 0
		err = unix.Prlimit(pid, unix.RLIMIT_CORE, &limit, nil)
	}
	if err != nil {
		return fmt.Errorf("disable core dumps of process %d: %w", pid, err)
	}
	return nil
}
