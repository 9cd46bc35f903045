package files

import (
	"errors"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// openDir is a directory that several goroutines use; the last closes it.
type openDir struct {
	fd    int
	users atomic.Int32
}

func newOpenDir(fd int) *openDir {
	d := &openDir{fd: fd}
	d.users.Store(1)
	return d
}

func (d *openDir) use() *openDir {
	if d != nil {
		d.users.Add(1)
	}
	return d
}

func (d *openDir) done() {
	if d != nil && d.users.Add(-1) == 0 {
		unix.Close(d.fd)
	}
}

// openBelow opens a directory of a tree by its path, which may be longer than the kernel takes at once.
func openBelow(root int, path string) (int, error) {
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
		fd, err := openDirectory(at, piece)
		if at != root {
			unix.Close(at)
		}
		if err != nil || rest == "" {
			return fd, err
		}
		at, path = fd, rest
	}
}

// moved reports whether an error means that a name is not there any more, or is something else now.
func moved(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
