package fsys

import (
	"errors"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// OpenDir is a directory that several goroutines use; the last closes it.
type OpenDir struct {
	Fd    int
	users atomic.Int32
}

// NewOpenDir returns a directory with one user.
func NewOpenDir(fd int) *OpenDir {
	d := &OpenDir{Fd: fd}
	d.users.Store(1)
	return d
}

// Use adds a user.
func (d *OpenDir) Use() *OpenDir {
	if d != nil {
		d.users.Add(1)
	}
	return d
}

// Done takes a user away; the last one closes the directory.
func (d *OpenDir) Done() {
	if d != nil && d.users.Add(-1) == 0 {
		unix.Close(d.Fd)
	}
}

// OpenBelow opens a directory of a tree by its path, which may be longer than the kernel takes at once.
func OpenBelow(root int, path string) (int, error) {
	const most = 4000
	if path == "" {
		path = "."
	}
	at := root
	for {
		piece, rest := path, ""
		if len(path) > most {
			cut := strings.LastIndexByte(path[:most], '/')
			piece, rest = path[:cut], path[cut+1:]
		}
		fd, err := OpenDirectory(at, piece)
		if at != root {
			unix.Close(at)
		}
		if err != nil || rest == "" {
			return fd, err
		}
		at, path = fd, rest
	}
}

// Moved reports whether an error means that a name is not there any more, or is something else now.
func Moved(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
