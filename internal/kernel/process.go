package kernel

import (
	"errors"
	"os"
)

// Process is what the kernel tells about one process.
type Process struct {
	PID         int
	NamespaceID int    // the pid in the innermost pid namespace
	Parent      int    // parent's pid
	Name        string // comm
	State       byte   // R, S, D, T, t, Z, X…
	StartTicks  uint64 // start time, clock ticks since boot: with the pid it names a process for ever
	Threads     int
	Tracer      int // pid of the process that traces it, 0 if none
}

// ReadProcess reads a process's facts from /proc. Error: fs.ErrNotExist when it is gone.
func ReadProcess(pid int) (Process, error) { return Process{}, errors.ErrUnsupported }

// PidfdOpen returns a descriptor that refers to a process and never to another that gets its number.
func PidfdOpen(pid int) (*os.File, error) { return nil, errors.ErrUnsupported }

// PidfdGetfd duplicates descriptor fd of the process behind pidfd (Linux 5.6).
func PidfdGetfd(pidfd *os.File, fd int) (*os.File, error) { return nil, errors.ErrUnsupported }

// PidfdKill sends SIGKILL to the process behind pidfd. It is no error if it is gone.
func PidfdKill(pidfd *os.File) error { return errors.ErrUnsupported }

// PidfdAlive tells whether the process behind pidfd has not ended.
func PidfdAlive(pidfd *os.File) (bool, error) { return false, errors.ErrUnsupported }
