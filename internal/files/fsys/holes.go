package fsys

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrShorter is the error for a file with less content than stat has reported, which happens while the
// container runs.
var ErrShorter = errors.New("the file became shorter while it was read")

// ReadFull reads a piece of a file; where the file ends before that, the rest is zero.
func ReadFull(fd int, p []byte, offset int64) error {
	n, err := ReadMost(fd, p, offset)
	if err == nil && n < len(p) {
		clear(p[n:])
		return ErrShorter
	}
	return err
}

// ReadMost reads up to the end of the file.
func ReadMost(fd int, p []byte, offset int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(fd, p[done:], offset+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return done, fmt.Errorf("read it: %w", err)
		case n == 0:
			return done, nil
		}
		done += n
	}
	return done, nil
}

// NextData finds the first bytes at or after a position that are not in a hole; none: start == end.
func NextData(fd int, from, size int64) (start, end int64, err error) {
	if from >= size {
		return size, size, nil
	}
	start, err = unix.Seek(fd, from, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return from, size, nil // this file system does not report holes
	case err != nil:
		return 0, 0, fmt.Errorf("look for data: %w", err)
	}
	if start >= size {
		return size, size, nil
	}
	end, err = unix.Seek(fd, start, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil // it became shorter
	}
	if err != nil {
		return 0, 0, fmt.Errorf("look for a hole: %w", err)
	}
	if end = min(end, size); end <= start { // a hole was punched meanwhile
		return start, min(start+1, size), nil
	}
	return start, end, nil
}
