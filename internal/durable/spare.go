package agent

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// spare is room on the disk for the journals, taken while there is plenty: a container that arrives
// may fill the disk, and then neither that it arrived nor that it never will could be recorded.
type spare struct {
	path string
	mu   sync.Mutex
}

const (
	spareName  = ".spare"
	spareBytes = 256 << 10 // several journals with long reports
)

// keep takes the room unless it is taken.
func (s *spare) keep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("room for journals: %w", err)
	}
	err = unix.Fallocate(int(file.Fd()), 0, 0, spareBytes)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = file.WriteAt(make([]byte, spareBytes), 0)
	}
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("room for journals, %d KiB at %s: %w", spareBytes>>10, s.path, err)
	}
	return nil
}

// spend gives the room away, and tells whether there was any.
func (s *spare) spend() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return os.Remove(s.path) == nil
}

// full tells whether an error is that of a full disk.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
