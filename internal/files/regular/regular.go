// Package regular opens files that others have claimed to be regular files.
package regular

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrOther means that something exists, but is not a regular file.
var ErrOther = errors.New("it is not a regular file")

// Openat opens a regular file for reading, by a path that openat2(2) resolves as told. Nothing else
// is opened: to open a device is not free of effects, nor need its driver ever return from it, and
// layers and containers' file systems have devices of any number.
func Openat(root int, path string, resolve uint64, flags int) (*os.File, error) {
	held, err := unix.Openat2(root, path,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(held)
	return Reopen(held, path, flags)
}

// Reopen opens what is held by O_PATH for reading, if it is a regular file: it cannot become anything else.
func Reopen(held int, path string, flags int) (*os.File, error) {
	var stat unix.Stat_t
	err := unix.Fstat(held, &stat)
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFREG {
		err = ErrOther
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", held), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|
		unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
