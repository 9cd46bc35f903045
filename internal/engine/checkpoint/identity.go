package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// Identity identifies a process for ever: a PID alone may be reused.
type Identity struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"start_ticks"`
}

// Identify returns the identity of a process that is alive now.
func Identify(pid int) (Identity, error) {
	process, err := kernel.ReadProcess(pid)
	if err != nil {
		return Identity{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return Identity{PID: pid, StartTicks: process.StartTicks}, nil
}

// Alive reports whether this very process runs. A zombie does not.
func (i Identity) Alive() bool {
	if i.PID <= 0 {
		return false
	}
	process, err := kernel.ReadProcess(i.PID)
	return err == nil && process.StartTicks == i.StartTicks && process.State != 'Z' && process.State != 'X'
}

// Kill sends SIGKILL to exactly this process.
func (i Identity) Kill() error { return i.Signal(unix.SIGKILL) }

// Signal sends a signal to exactly this process, and to none if it has ended.
func (i Identity) Signal(signal unix.Signal) error {
	pidfd, err := kernel.PidfdOpen(i.PID)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", i.PID, err)
	}
	defer pidfd.Close()
	if !i.Alive() { // checked after the process was opened, so its PID cannot be reused in between
		return nil
	}
	err = unix.PidfdSendSignal(int(pidfd.Fd()), signal, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", i.PID, err)
	}
	return nil
}
