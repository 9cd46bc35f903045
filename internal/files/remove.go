package files

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// RemoveTree removes a directory and everything in it, whatever a container has put there: any depth, any
// names, immutable files. It follows no link and stops at mounts. A missing directory is no error.
func RemoveTree(path string) error {
	if err := EmptyTree(path); err != nil {
		return err
	}
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// EmptyTree removes everything in a directory, as RemoveTree does, and leaves the directory. A missing
// directory is no error.
func EmptyTree(path string) error {
	fd, err := unix.Open(path, openDirectoryFlags, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	unlock(fd)
	if err := emptyDirectory(fd, nil); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// emptyDirectory removes the contents of an open directory, and closes it. It counts what is gone if count
// is set.
func emptyDirectory(fd int, count *usage) error {
	w, err := newWalk(fd)
	if err != nil {
		return err
	}
	w.consumes = true
	defer w.close()
	for w.depth() > 0 {
		name, kind, err := w.next()
		switch {
		case errors.Is(err, io.EOF):
			err = emptied(w, count)
		case err == nil:
			err = discard(w, name, kind, count)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", w.path(name), err)
		}
	}
	return nil
}

// emptied leaves a directory whose names have all been seen, and removes it.
func emptied(w *walk, count *usage) error {
	name := w.name()
	if err := w.ascend(); err != nil || w.depth() == 0 {
		return err
	}
	if count != nil {
		count.entries--
	}
	return unlink(w.fd(), name, unix.AT_REMOVEDIR)
}

func discard(w *walk, name string, kind byte, count *usage) error {
	if kind != unix.DT_DIR {
		err := discardFile(w.fd(), name, count)
		if kind != unix.DT_UNKNOWN || !errors.Is(err, unix.EISDIR) {
			return err
		}
	}
	err := w.descend(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		unlock(w.fd())
	}
	return err
}

func discardFile(dirfd int, name string, count *usage) error {
	var stat unix.Stat_t
	if count != nil {
		if err := unix.Fstatat(dirfd, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	err := unlink(dirfd, name, 0)
	if err == nil && count != nil {
		count.gone(&stat)
	}
	return err
}

// unlink removes a name, and first the file's own flags that may forbid that. The directory's flags are
// already gone.
func unlink(dirfd int, name string, flags int) error {
	return unlessGone(withoutLocks(dirfd, name, func() error { return unix.Unlinkat(dirfd, name, flags) }))
}
