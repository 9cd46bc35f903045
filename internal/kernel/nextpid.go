package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// NextPID makes a process in the PID namespace of another process, which ends at once, and returns its PID
// there. The kernel assigns PIDs in turn: if the next PID follows the last one, no process has started
// meanwhile, however short-lived. The namespace's processes can see the new process only at that very
// moment.
func NextPID(pid int) (int, error) {
	type result struct {
		number int
		err    error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread's children start in the other namespace
		number, err := nextPID(pid)
		done <- result{number, err}
	}()
	r := <-done
	if r.err != nil {
		return 0, fmt.Errorf("find the next number in the pid namespace of process %d: %w", pid, r.err)
	}
	return r.number, nil
}

func nextPID(pid int) (int, error) {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return 0, err
	}
	defer namespace.Close()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWPID); err != nil {
		return 0, err
	}
	// A fork would copy the page tables of this process, which may be large, and slow it down for a while.
	// This does not, and the program never runs: it stops when it is loaded.
	child, err := syscall.ForkExec("/proc/self/exe", []string{"probe"},
		&syscall.ProcAttr{Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		return 0, err
	}
	process, err := ReadProcess(child)
	_ = unix.Kill(child, unix.SIGKILL) // it is our child, and exists until it is waited for
	for {
		var status unix.WaitStatus
		_, waitErr := unix.Wait4(child, &status, unix.WALL, nil)
		switch {
		case errors.Is(waitErr, unix.EINTR) || waitErr == nil && status.Stopped():
			continue
		default:
			return process.NamespaceID, errors.Join(err, waitErr)
		}
	}
}
