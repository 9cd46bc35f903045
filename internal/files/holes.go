package files

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errShorter is the error for a file with less content than stat has reported, which happens while the
// container runs.
var errShorter = errors.New("the file became shorter while it was read")

// readFull reads a piece of a file; where the file ends before that, the rest is zero.
func readFull(fd int, p []byte, offset int64) error {
	n, err := readMost(fd, p, offset)
	if err == nil && n < len(p) {
		clear(p[n:])
		return errShorter
	}
	return err
}

// readMost reads up to the end of the file.
func readMost(fd int, p []byte, offset int64) (int, error) {
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

// nextData finds the first bytes at or after a position that are not in a hole; none: start == end.
func nextData(fd int, from, size int64) (start, end int64, err error) {
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
