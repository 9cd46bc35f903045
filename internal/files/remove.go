package files

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// RemoveTree removes a directory and everything in it, whatever a container has put there: any depth, any names,
// immutable files. It follows no link and stops at mounts. That there is no such directory is success.
func RemoveTree(path string) error {
	fd, err := unix.Open(path, openDirectoryFlags, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	unlock(fd)
	if err := emptyDirectory(fd); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	if err := unix.Rmdir(path); err != nil {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// emptyDirectory removes what is in an open directory, and closes it.
func emptyDirectory(fd int) error {
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
			err = emptied(w)
		case err == nil:
			err = discard(w, name, kind)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", w.path(name), err)
		}
	}
	return nil
}

// emptied goes back from a directory all of whose names were seen, and removes it.
func emptied(w *walk) error {
	name := w.name()
	if err := w.ascend(); err != nil || w.depth() == 0 {
		return err
	}
	return unlink(w.fd(), name, unix.AT_REMOVEDIR)
}

func discard(w *walk, name string, kind byte) error {
	if kind != unix.DT_DIR {
		err := unlink(w.fd(), name, 0)
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

// unlink removes a name, and what may forbid that: flags of the file itself. Those of the directory are gone already.
func unlink(dirfd int, name string, flags int) error {
	err := unix.Unlinkat(dirfd, name, flags)
	var stat unix.Stat_t
	if errors.Is(err, unix.EPERM) && unix.Fstatat(dirfd, name, &stat, unix.AT_SYMLINK_NOFOLLOW) == nil && stat.Mode&unix.S_IFMT == unix.S_IFREG {
		fd, openErr := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if openErr != nil {
			return err
		}
		unlock(fd)
		unix.Close(fd)
		err = unix.Unlinkat(dirfd, name, flags)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// unlock takes away the flags that forbid changes. If it cannot, the change that follows fails and says so.
func unlock(fd int) {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&lockingFlags != 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^lockingFlags))
	}
}
