package files

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
)

// MoveContent moves all names in a directory to another directory of the same file system (otherwise
// unix.EXDEV). Names that already exist there stay where they are. It follows no link.
func MoveContent(from, to string) error {
	source, err := unix.Open(from, fsys.OpenDirectoryFlags, 0)
	if err != nil {
		return fmt.Errorf("move what is in %s: %w", from, err)
	}
	defer unix.Close(source)
	target, err := unix.Open(to, fsys.OpenDirectoryFlags, 0)
	if err != nil {
		return fmt.Errorf("move to %s: %w", to, err)
	}
	defer unix.Close(target)
	fsys.Unlock(source)
	l := fsys.Listing{Buffer: make([]byte, fsys.ListingBuffer)}
	for moved := true; moved; {
		if moved, err = moveSome(&l, source, target); err != nil {
			return fmt.Errorf("move what is in %s to %s: %w", from, to, err)
		}
	}
	return nil
}

// moveSome moves what one pass through a directory finds: removing names during the pass may hide others.
func moveSome(l *fsys.Listing, source, target int) (moved bool, err error) {
	if _, err := unix.Seek(source, 0, io.SeekStart); err != nil {
		return false, err
	}
	l.Unread = nil
	for {
		name, _, err := l.Read(source)
		if errors.Is(err, io.EOF) {
			return moved, nil
		}
		if err == nil {
			err = fsys.WithoutLocks(source, name,
				func() error { return unix.Renameat2(source, name, target, name, unix.RENAME_NOREPLACE) })
			moved = moved || err == nil
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return moved, fmt.Errorf("%q: %w", name, err)
		}
	}
}
