package files

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// spool is a sequence of bytes that grows at its end: in memory while it is small, from then on in
// a file that has no name, so that nothing of it is left whatever ends the process. Several
// goroutines may use it.
type spool struct {
	dir string

	mu      sync.Mutex
	file    int // -1: there is none yet
	written int64
	tail    []byte // what is not in the file
}

// spoolMemory is how much of a spool is in memory at most.
const spoolMemory = 256 << 10

func newSpool(dir string) *spool { return &spool{dir: dir, file: -1} }

func (s *spool) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written + int64(len(s.tail))
}

// append adds bytes, and returns where they are.
func (s *spool) append(p []byte) (offset int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	offset = s.written + int64(len(s.tail))
	if len(s.tail)+len(p) > spoolMemory {
		if err := s.flush(); err != nil {
			return 0, err
		}
		if len(p) > spoolMemory {
			return offset, s.write(p)
		}
	}
	s.tail = append(s.tail, p...)
	return offset, nil
}

func (s *spool) flush() error {
	err := s.write(s.tail)
	s.tail = s.tail[:0]
	return err
}

func (s *spool) write(p []byte) error {
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

// readAt reads bytes that were added.
func (s *spool) readAt(p []byte, offset int64) error {
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

func (s *spool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file >= 0 {
		unix.Close(s.file)
	}
	s.file, s.written, s.tail = -1, 0, nil
}

// spoolReader reads a spool from one place to another.
type spoolReader struct {
	spool    *spool
	position int64 // of what has not been returned
	end      int64
	buffer   []byte
	unread   []byte
}

func (s *spool) reader(from, to int64) *spoolReader {
	return &spoolReader{spool: s, position: from, end: to}
}

// next returns so many bytes, valid until the following call, or io.EOF at the end.
func (r *spoolReader) next(n int) ([]byte, error) {
	if err := r.fill(n); err != nil {
		return nil, err
	}
	p := r.unread[:n]
	r.unread = r.unread[n:]
	r.position += int64(n)
	return p, nil
}

// peek is next without going on.
func (r *spoolReader) peek(n int) ([]byte, error) {
	if err := r.fill(n); err != nil {
		return nil, err
	}
	return r.unread[:n], nil
}

func (r *spoolReader) fill(n int) error {
	if len(r.unread) >= n {
		return nil
	}
	left := r.end - r.position
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
	if err := r.spool.readAt(r.buffer[have:want], r.position+int64(have)); err != nil {
		return err
	}
	r.unread = r.buffer[:want]
	return nil
}
