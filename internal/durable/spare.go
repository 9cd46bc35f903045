package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Spare is reserved disk space for records, taken while there is plenty: an arriving container may fill the
// disk, and then neither its arrival nor its failure could be recorded.
type Spare struct {
	path string
	mu   sync.Mutex
}

const (
	spareName  = ".spare"
	spareBytes = 256 << 10 // several journals with long reports
)

// NewSpare returns the spare space in a directory. It takes nothing yet.
func NewSpare(directory string) *Spare { return &Spare{path: filepath.Join(directory, spareName)} }

// Keep takes the space unless it is taken. Errors: a full disk (Full).
func (s *Spare) Keep() error {
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

// Spend releases the space, and reports whether there was any.
func (s *Spare) Spend() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return os.Remove(s.path) == nil
}

// Full reports whether an error is that of a full disk.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
