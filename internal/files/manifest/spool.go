package manifest

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// Spool is a sequence of bytes that grows at its end: in memory while it is small, from then on in
// a file that has no name, so that nothing of it is left whatever ends the process. Several
// goroutines may use it.
type Spool struct {
	dir string

	mu      sync.Mutex
	file    int // -1: there is none yet
	written int64
	tail    []byte // what is not in the file
}

// SpoolMemory is how much of a spool is in memory at most.
const SpoolMemory = 256 << 10

// NewSpool returns an empty spool; dir is for its file.
func NewSpool(dir string) *Spool { return &Spool{dir: dir, file: -1} }

// Size returns how many bytes there are.
func (s *Spool) Size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written + int64(len(s.tail))
}

// Append adds bytes, and returns where they are.
func (s *Spool) Append(p []byte) (offset int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	offset = s.written + int64(len(s.tail))
	if len(s.tail)+len(p) > SpoolMemory {
		if err := s.flush(); err != nil {
			return 0, err
		}
		if len(p) > SpoolMemory {
			return offset, s.write(p)
		}
	}
	s.tail = append(s.tail, p...)
	return offset, nil
}

func (s *Spool) flush() error {
	err := s.write(s.tail)
	s.tail = s.tail[:0]
	return err
}

func (s *Spool) write(p []byte) error {
	if s.file < 0 {
		fd, err := unix.Open(s.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return fmt.Errorf("make a file for lists of files in %s: %w", s.dir, err)
		}
		s.file = fd
	}
	for len(p) > 0 {
		n, err := unix.Pwrite(s.file, p, s.written)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("write lists of files in %s: %w", s.dir, err)
		}
		s.written += int64(n)
		p = p[n:]
	}
	return nil
}

// ReadAt reads bytes that were added.
func (s *Spool) ReadAt(p []byte, offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(p) > 0 {
		n := 0
		if offset >= s.written {
			if n = copy(p, s.tail[min(offset-s.written, int64(len(s.tail))):]); n == 0 {
				return io.ErrUnexpectedEOF
			}
		} else {
			var err error
			n, err = unix.Pread(s.file, p[:min(int64(len(p)), s.written-offset)], offset)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil:
				return fmt.Errorf("read lists of files in %s: %w", s.dir, err)
			case n == 0:
				return io.ErrUnexpectedEOF
			}
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

// Close removes the spool's content.
func (s *Spool) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file >= 0 {
		unix.Close(s.file)
	}
	s.file, s.written, s.tail = -1, 0, nil
}

// SpoolReader reads a spool from one place to another.
type SpoolReader struct {
	spool    *Spool
	position int64 // of what has not been returned
	End      int64
	buffer   []byte
	unread   []byte
}

// Reader reads the bytes between two positions.
func (s *Spool) Reader(from, to int64) *SpoolReader {
	return &SpoolReader{spool: s, position: from, End: to}
}

// Next returns so many bytes, valid until the following call, or io.EOF at the end.
func (r *SpoolReader) Next(n int) ([]byte, error) {
	if err := r.fill(n); err != nil {
		return nil, err
	}
	p := r.unread[:n]
	r.unread = r.unread[n:]
	r.position += int64(n)
	return p, nil
}

// Peek is next without going on.
func (r *SpoolReader) Peek(n int) ([]byte, error) {
	if err := r.fill(n); err != nil {
		return nil, err
	}
	return r.unread[:n], nil
}

func (r *SpoolReader) fill(n int) error {
	if len(r.unread) >= n {
		return nil
	}
	left := r.End - r.position
	if left == 0 {
		return io.EOF
	}
	if left < int64(n) {
		return fmt.Errorf("read %d bytes of a list that has only %d more: %w", n, left, io.ErrUnexpectedEOF)
	}
	const usual = 128 << 10
	if cap(r.buffer) < max(n, int(min(usual, left))) {
		r.buffer = make([]byte, max(n, int(min(usual, left))))
	}
	have := copy(r.buffer[:cap(r.buffer)], r.unread)
	want := int(min(int64(cap(r.buffer)), left))
	if err := r.spool.ReadAt(r.buffer[have:want], r.position+int64(have)); err != nil {
		return err
	}
	r.unread = r.buffer[:want]
	return nil
}
