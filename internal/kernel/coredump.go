package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NoCoreDump has the kernel write no core dump of this process, whatever it ends of: it may hold
// memory and environments of containers. Unlike a limit (RLIMIT_CORE), which core_pattern(5)s with
// a program ignore, this is not inherited by a program that it starts, and so not by containers:
// execve(2) sets it back. Only root can look at such a process in /proc.
func NoCoreDump() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("disable core dumps of this process: %w", err)
	}
	return nil
}

// LimitCoreDump has the kernel write no core dump of a process of another program, and of what that
// starts from now on, as far as core_pattern(5) does not give them to a program. It may raise its
// limit again.
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
