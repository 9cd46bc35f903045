package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// listing reads the names of one directory, a buffer at a time.
type listing struct {
	buffer []byte
	unread []byte
	next   int64 // the kernel's position after the last returned name
}

// dirent is struct linux_dirent64 without its name: inode (8), position (8), record length (2), type (1).
const direntHeader = 19

const listingBuffer = 32 << 10

// read returns the next name and its type (unix.DT_*), or io.EOF.
func (l *listing) read(fd int) (string, byte, error) {
	for {
		if len(l.unread) == 0 {
			n, err := unix.Getdents(fd, l.buffer)
			if errors.Is(err, unix.ENOENT) {
				n, err = 0, nil // the directory was removed, so it has no names any more
			}
			if err != nil {
				return "", 0, fmt.Errorf("read the directory: %w", err)
			}
			if n == 0 {
				return "", 0, io.EOF
			}
			l.unread = l.buffer[:n]
		}
		record := l.unread
		length := int(binary.NativeEndian.Uint16(record[16:]))
		if length < direntHeader || length > len(record) {
			return "", 0, fmt.Errorf("read the directory: the kernel returned a malformed entry")
		}
		l.unread = record[length:]
		l.next = int64(binary.NativeEndian.Uint64(record[8:]))
		name, _, _ := bytes.Cut(record[direntHeader:length], []byte{0})
		if string(name) != "." && string(name) != ".." {
			return string(name), record[18], nil
		}
	}
}

// walk walks a tree, depth first, in the order in which directories list their names. It holds a buffer for
// each open level only.
type walk struct {
	descent
	listings []listing
	free     [][]byte
	consumes bool // read names are removed, so reading restarts in a directory that had been closed
}

// newWalk takes over an open directory.
func newWalk(root int) (*walk, error) {
	w := &walk{}
	return w, w.into(root, "")
}

func (w *walk) into(fd int, name string) error {
	if err := w.enter(fd, name); err != nil {
		return err
	}
	w.listings = append(w.listings, listing{buffer: w.buffer()})
	if closed := w.lowest - 1; closed >= 0 {
		w.release(&w.listings[closed])
	}
	return nil
}

// descend goes into a directory of the present one.
func (w *walk) descend(name string) error {
	fd, err := openDirectory(w.fd(), name)
	if err != nil {
		return err
	}
	return w.into(fd, name)
}

// next returns the next name in the present directory, or io.EOF.
func (w *walk) next() (string, byte, error) {
	return w.listings[len(w.listings)-1].read(w.fd())
}

// ascend returns to where the directory above was left.
func (w *walk) ascend() error {
	last := len(w.listings) - 1
	w.release(&w.listings[last])
	w.listings = w.listings[:last]
	reopened, err := w.leave()
	if err != nil || !reopened {
		return err
	}
	above := &w.listings[last-1]
	above.buffer = w.buffer()
	if w.consumes {
		return nil
	}
	if _, err := unix.Seek(w.fd(), above.next, io.SeekStart); err != nil {
		return fmt.Errorf("go on reading the directory above: %w", err)
	}
	return nil
}

func (w *walk) buffer() []byte {
	if n := len(w.free); n > 0 {
		buffer := w.free[n-1]
		w.free = w.free[:n-1]
		return buffer
	}
	return make([]byte, listingBuffer)
}

func (w *walk) release(l *listing) {
	if l.buffer != nil {
		w.free = append(w.free, l.buffer)
		l.buffer, l.unread = nil, nil
	}
}

// unlessGone ignores that a name no longer exists.
func unlessGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
