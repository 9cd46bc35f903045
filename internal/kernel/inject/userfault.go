package inject

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

const (
	uffdUserModeOK = 1 // UFFD_USER_MODE_ONLY (Linux 5.11): needs no privilege
)

// OpenUserfault opens a userfaultfd in a process, as if the process had, and returns a descriptor of it;
// the process keeps none. It stops one thread of the process for the returned time, well under a
// millisecond.
//
// What happens to the thread: PTRACE_SEIZE, PTRACE_INTERRUPT, two system calls (userfaultfd, close) at a
// system call instruction that its memory has anyway, then its registers and signal mask are restored, and
// PTRACE_DETACH. The kernel restarts an interrupted system call. No signal is sent. Pages at the end of the
// stack that were never used may be written and become zero again; they are the way back of the thread if
// the caller dies meanwhile (Tracee.protect).
func OpenUserfault(pid int) (fd int, stopped time.Duration, err error) {
	type result struct {
		fd      int
		stopped time.Duration
		err     error
	}
	var r result
	AsTracer(func() bool {
		t := &Tracee{PID: pid}
		r.fd, r.err = openUserfault(t)
		r.stopped = t.stopped
		return !t.Seized
	})
	if r.err != nil {
		return -1, r.stopped, fmt.Errorf("open a userfaultfd in process %d: %w", pid, kernel.WhenGone(r.err))
	}
	return r.fd, r.stopped, nil
}

// attachTries is how often a process may call execve meanwhile.
const attachTries = 5

func openUserfault(t *Tracee) (int, error) {
	pidfd, err := kernel.PidfdOpen(t.PID)
	if err != nil {
		return -1, err
	}
	defer pidfd.Close()
	for try := 1; ; try++ {
		fd, err := tryUserfault(t, pidfd)
		if !errors.Is(err, errMoved) || try == attachTries {
			return fd, err
		}
		time.Sleep(time.Millisecond)
	}
}

func tryUserfault(t *Tracee, pidfd *os.File) (int, error) {
	if err := t.look(); err != nil {
		return -1, err
	}
	var err error
	if t.TID, err = liveThread(t.PID); err != nil {
		return -1, err
	}
	left := leftovers(t)
	if err := t.stop(); err != nil {
		return -1, err
	}
	fd, err := takeUserfault(t, pidfd, left)
	if e := t.Release(); e != nil && err == nil {
		err = e
		_ = unix.Close(fd) // useless without its process
	}
	return fd, err
}

// takeUserfault does the work while the thread is stopped.
func takeUserfault(t *Tracee, pidfd *os.File, leftovers []uint64) (int, error) {
	if err := t.save(); err != nil {
		return -1, err
	}
	if err := t.confirm(); err != nil {
		return -1, err
	}
	_ = t.protect() // on an error the thread has no way back
	for _, fd := range leftovers {
		_, _ = t.syscall(unix.SYS_CLOSE, fd) // or it was closed meanwhile
	}
	theirs, err := t.syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|uffdUserModeOK)
	if err != nil {
		return -1, fmt.Errorf("userfaultfd: %w", err)
	}
	fd, err := kernel.PidfdGetfd(pidfd, int(theirs))
	if _, e := t.syscall(unix.SYS_CLOSE, theirs); e != nil && err == nil {
		err = fmt.Errorf("close descriptor %d in the process: %w", theirs, e)
		_ = unix.Close(fd) // it was never used
	}
	return fd, err
}
