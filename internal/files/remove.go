package files

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
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
	fd, err := unix.Open(path, fsys.OpenDirectoryFlags, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	fsys.Unlock(fd)
	if err := EmptyDirectory(fd, nil); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// EmptyDirectory removes the contents of an open directory, and closes it. It counts what is gone if count
// is set.
func EmptyDirectory(fd int, count *Usage) error {
	w, err := fsys.NewWalk(fd)
	if err != nil {
		return err
	}
	w.Consumes = true
	defer w.Close()
	for w.Depth() > 0 {
		name, kind, err := w.Next()
		switch {
		case errors.Is(err, io.EOF):
			err = emptied(w, count)
		case err == nil:
			err = discard(w, name, kind, count)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", w.Path(name), err)
		}
	}
	return nil
}

// emptied leaves a directory whose names have all been seen, and removes it.
func emptied(w *fsys.Walk, count *Usage) error {
	name := w.Name()
	if err := w.Ascend(); err != nil || w.Depth() == 0 {
		return err
	}
	if count != nil {
		count.Entries--
	}
	return Unlink(w.Fd(), name, unix.AT_REMOVEDIR)
}

func discard(w *fsys.Walk, name string, kind byte, count *Usage) error {
	if kind != unix.DT_DIR {
		err := discardFile(w.Fd(), name, count)
		if kind != unix.DT_UNKNOWN || !errors.Is(err, unix.EISDIR) {
			return err
		}
	}
	err := w.Descend(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		fsys.Unlock(w.Fd())
	}
	return err
}

func discardFile(dirfd int, name string, count *Usage) error {
	var stat unix.Stat_t
	if count != nil {
		if err := unix.Fstatat(dirfd, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	err := Unlink(dirfd, name, 0)
	if err == nil && count != nil {
		count.Gone(&stat)
	}
	return err
}

// Unlink removes a name, and first the file's own flags that may forbid that. The directory's flags are
// already gone.
func Unlink(dirfd int, name string, flags int) error {
	return fsys.UnlessGone(fsys.WithoutLocks(dirfd, name, func() error {
		return unix.Unlinkat(dirfd, name, flags)
	}))
}
