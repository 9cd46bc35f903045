package kernel

import (
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// ForkSleeper makes a process that has all of this process's memory, shared copy-on-write, and sleeps until
// it is killed. It is for workloads, because it can do nothing else: Go's other threads do not exist in it.
// The caller waits for it.
func ForkSleeper() (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, errno := forkSleeper()
	if errno != 0 {
		return 0, fmt.Errorf("fork: %w", errno)
	}
	return pid, nil
}

// forkSleeper returns in the parent only. What the child does must need no stack, memory or thread of Go's.
//
//go:noinline
//go:norace
func forkSleeper() (int, syscall.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return int(pid), errno
	}
	for {
		_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}
