package kernel

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// GiveFiles makes another process, which may be in a system call and runs as root, take over open files of
// this process, and returns their descriptors there. They are the same open files, with one position, and
// are closed when the process calls execve.
//
// The process is stopped and makes the system calls itself (pidfd_open, pidfd_getfd; Linux 5.6), as with
// OpenUserfault. But if this process dies meanwhile, the other process dies, too.
func GiveFiles(pid int, files []*os.File) ([]int, error) {
	var fds []int
	var err error
	AsTracer(func() bool {
		t := &Tracee{PID: pid, TID: pid}
		fds, err = t.giveFiles(files)
		return !t.Seized
	})
	if err != nil {
		return nil, fmt.Errorf("give %d files to process %d: %w", len(files), pid, err)
	}
	return fds, nil
}

func (t *Tracee) giveFiles(files []*os.File) (fds []int, err error) {
	if err := t.look(); err != nil {
		return nil, err
	}
	if err := t.stop(); err != nil {
		return nil, err
	}
	defer func() {
		if e := t.Release(); e != nil && err == nil {
			err = e
		}
	}()
	if err := t.save(); err != nil {
		return nil, err
	}
	if err := t.confirm(); err != nil {
		return nil, err
	}
	self, err := t.syscall(unix.SYS_PIDFD_OPEN, uint64(os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	for _, file := range files {
		fd, err := t.syscall(unix.SYS_PIDFD_GETFD, self, uint64(file.Fd()))
		if err != nil {
			return nil, fmt.Errorf("pidfd_getfd: %w", err)
		}
		fds = append(fds, int(fd))
	}
	if _, err := t.syscall(unix.SYS_CLOSE, self); err != nil {
		return nil, fmt.Errorf("close: %w", err)
	}
	return fds, nil
}
