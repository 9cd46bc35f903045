package fsys

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Listing reads the names of one directory, a buffer at a time.
type Listing struct {
	Buffer []byte
	Unread []byte
	next   int64 // the kernel's position after the last returned name
}

// dirent is struct linux_dirent64 without its name: inode (8), position (8), record length (2), type (1).
const direntHeader = 19

// ListingBuffer is the size of the buffer with which directories are listed.
const ListingBuffer = 32 << 10

// Read returns the next name and its type (unix.DT_*), or io.EOF.
func (l *Listing) Read(fd int) (string, byte, error) {
	for {
		if len(l.Unread) == 0 {
			n, err := unix.Getdents(fd, l.Buffer)
			if errors.Is(err, unix.ENOENT) {
				n, err = 0, nil // the directory was removed, so it has no names any more
			}
			if err != nil {
				return "", 0, fmt.Errorf("read the directory: %w", err)
			}
			if n == 0 {
				return "", 0, io.EOF
			}
			l.Unread = l.Buffer[:n]
		}
		record := l.Unread
		length := int(binary.NativeEndian.Uint16(record[16:]))
		if length < direntHeader || length > len(record) {
			return "", 0, fmt.Errorf("read the directory: the kernel returned a malformed entry")
		}
		l.Unread = record[length:]
		l.next = int64(binary.NativeEndian.Uint64(record[8:]))
		name, _, _ := bytes.Cut(record[direntHeader:length], []byte{0})
		if string(name) != "." && string(name) != ".." {
			return string(name), record[18], nil
		}
	}
}

// Walk walks a tree, depth first, in the order in which directories list their names. It holds a buffer for
// each open level only.
type Walk struct {
	Descent
	listings []Listing
	free     [][]byte
	Consumes bool // read names are removed, so reading restarts in a directory that had been closed
}

// NewWalk takes over an open directory.
func NewWalk(root int) (*Walk, error) {
	w := &Walk{}
	return w, w.into(root, "")
}

func (w *Walk) into(fd int, name string) error {
	if err := w.Enter(fd, name); err != nil {
		return err
	}
	w.listings = append(w.listings, Listing{Buffer: w.buffer()})
	if closed := w.lowest - 1; closed >= 0 {
		w.release(&w.listings[closed])
	}
	return nil
}

// Descend goes into a directory of the present one.
func (w *Walk) Descend(name string) error {
	fd, err := OpenDirectory(w.Fd(), name)
	if err != nil {
		return err
	}
	return w.into(fd, name)
}

// Next returns the next name in the present directory, or io.EOF.
func (w *Walk) Next() (string, byte, error) {
	return w.listings[len(w.listings)-1].Read(w.Fd())
}

// Ascend returns to where the directory above was left.
func (w *Walk) Ascend() error {
	last := len(w.listings) - 1
	w.release(&w.listings[last])
	w.listings = w.listings[:last]
	reopened, err := w.Leave()
	if err != nil || !reopened {
		return err
	}
	above := &w.listings[last-1]
	above.Buffer = w.buffer()
	if w.Consumes {
		return nil
	}
	if _, err := unix.Seek(w.Fd(), above.next, io.SeekStart); err != nil {
		return fmt.Errorf("go on reading the directory above: %w", err)
	}
	return nil
}

func (w *Walk) buffer() []byte {
	if n := len(w.free); n > 0 {
		buffer := w.free[n-1]
		w.free = w.free[:n-1]
		return buffer
	}
	return make([]byte, ListingBuffer)
}

func (w *Walk) release(l *Listing) {
	if l.Buffer != nil {
		w.free = append(w.free, l.Buffer)
		l.Buffer, l.Unread = nil, nil
	}
}

// UnlessGone ignores that a name no longer exists.
func UnlessGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
