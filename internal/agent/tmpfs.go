package agent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mountMemory makes a directory whose files are in memory only. With noswap (Linux 6.4) they are
// not swapped out either. Whether there is room was looked at before (ExamineOwnRoom), so the usual
// limit of half of the memory is not wanted.
func mountMemory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("memory for the execution state: %w", err)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"mode=0700,size=100%,noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
			"mode=0700,size=100%")
	}
	if err != nil {
		return fmt.Errorf("memory for the execution state at %s: %w", dir, err)
	}
	return nil
}
