package files

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
)

// Size is how much there is in a tree.
type Size struct {
	Entries int64
	Bytes   int64 // of regular files, without holes: about the size of a first copy
}

// TreeSize measures a tree, which may change meanwhile. Files with several names count once for each.
func TreeSize(ctx context.Context, tree Tree) (Size, error) {
	size, err := treeSize(ctx, tree.Path)
	if err != nil {
		return Size{}, fmt.Errorf("measure %s: %w", tree.Path, err)
	}
	return size, nil
}

func treeSize(ctx context.Context, path string) (Size, error) {
	var size Size
	root, err := unix.Open(path, fsys.OpenDirectoryFlags&^unix.O_NOFOLLOW, 0)
	if err != nil {
		return size, err
	}
	w, err := fsys.NewWalk(root)
	if err != nil {
		return size, err
	}
	defer w.Close()
	for w.Depth() > 0 {
		if err := ctx.Err(); err != nil {
			return size, err
		}
		name, kind, err := w.Next()
		switch {
		case errors.Is(err, io.EOF):
			size.Entries++
			err = w.Ascend()
		case err == nil:
			err = size.add(w, name, kind)
		}
		if err != nil {
			return size, fmt.Errorf("%q: %w", w.Path(name), err)
		}
	}
	return size, nil
}

func (s *Size) add(w *fsys.Walk, name string, kind byte) error {
	if kind == unix.DT_DIR {
		return fsys.UnlessGone(w.Descend(name))
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(w.Fd(), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fsys.UnlessGone(err)
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return fsys.UnlessGone(w.Descend(name))
	case unix.S_IFREG:
		s.Bytes += min(stat.Size, stat.Blocks*512)
	}
	s.Entries++
	return nil
}

// NoSpaceError means that something does not fit.
type NoSpaceError struct {
	Path   string
	Needed int64
	Free   int64
	cause  error
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("not enough space at %s: %d bytes are needed, %d are free; make room there", e.Path,
		e.Needed, e.Free)
}

// Unwrap returns the kernel's error, usually unix.ENOSPC.
func (e *NoSpaceError) Unwrap() error { return e.cause }

// CheckSpace returns a *NoSpaceError if path's file system has less than the needed bytes free.
func CheckSpace(path string, needed int64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("ask for free space at %s: %w", path, err)
	}
	defer unix.Close(fd)
	return CheckSpaceAt(fd, path, needed)
}

// CheckSpaceAt is CheckSpace for an open file or directory; path is for the message.
func CheckSpaceAt(fd int, path string, needed int64) error {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(fd, &stat); err != nil {
		return fmt.Errorf("ask for free space at %s: %w", path, err)
	}
	if free := freeBytes(&stat); free < needed {
		return &NoSpaceError{Path: path, Needed: needed, Free: free, cause: unix.ENOSPC}
	}
	return nil
}

// freeBytes returns what an unprivileged user may still use: the rest keeps the machine alive. A file
// system without block counts, such as overlayfs over some FUSE file systems, is assumed to have room.
func freeBytes(stat *unix.Statfs_t) int64 {
	if stat.Blocks == 0 {
		return 1<<63 - 1
	}
	unit := stat.Frsize
	if unit == 0 {
		unit = stat.Bsize
	}
	return int64(stat.Bavail) * unit
}

// NoSpace returns a *NoSpaceError for path, or cause if the file system does not say what is free.
func NoSpace(path string, needed int64, cause error) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return cause
	}
	return &NoSpaceError{Path: path, Needed: needed, Free: freeBytes(&stat), cause: cause}
}

// Sync makes what was written below a directory durable, by syncing its file system.
func Sync(path string) error {
	fd, err := unix.Open(path, fsys.OpenDirectoryFlags, 0)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
