package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// The execution state is the set of files that CRIU writes. It travels as pieces, each a section
// named FILE@OFFSET, so that the large files can leave while they grow. Both ends keep it in memory
// only.

const (
	// bytes of one piece at most; keeps sections short, so that none waits behind a large one
	statePiece = 4 << 20
	// followEvery is how often a growing file is looked at. At 1 Gbit/s 250 KB leave meanwhile:
	// less than a socket's buffer holds.
	followEvery   = 2 * time.Millisecond
	maxStateFiles = 1 << 16
)

// stateName is what CRIU calls its files. Nothing else is accepted from a peer.
var stateName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// SectionWriter begins a section of a data stream; what is written to it ends with Close.
type SectionWriter func(name string) (io.WriteCloser, error)

// Sender sends the files of a directory, each byte once, in any number of passes.
type Sender struct {
	dir   string
	open  SectionWriter
	sent  map[string]int64
	known *Known        // that files of pages may refer to; nil: none
	refer SectionWriter // begins a section that does
}

// NewSender sends the files of a directory.
func NewSender(dir string, open SectionWriter) *Sender {
	return &Sender{dir: dir, open: open, sent: map[string]int64{}}
}

// Refer has files of pages refer to what the target has: nil, if that is nothing. open begins a section that
// does.
func (s *Sender) Refer(known *Known, open SectionWriter) { s.known, s.refer = known, open }

// Follow sends what only grows, until complete is closed: also when there is more to send then,
// which is no longer part of the dump. Then rest sends what is left.
func (s *Sender) Follow(ctx context.Context, complete <-chan struct{}) error {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		select {
		case <-complete:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
		if err := s.pass(complete, grows); err != nil {
			return err
		}
	}
}

// grows reports whether CRIU only appends to a file, and may make it large: pages, and what waits in
// the queues of a connection (dump_tcp_conn_state in criu/sk-tcp.c), which may be some MB of each.
func grows(name string) bool { return hasPages(name) || strings.HasPrefix(name, "tcp-stream-") }

// hasPages reports whether a file is nothing but pages, one after the other.
func hasPages(name string) bool { return strings.HasPrefix(name, "pages-") }

// Rest sends all that has not been sent, and returns the names and sizes of all files.
func (s *Sender) Rest() (map[string]int64, error) {
	if err := s.pass(nil, func(name string) bool { return stateName.MatchString(name) }); err != nil {
		return nil, err
	}
	return s.sent, nil
}

// pass goes through all files once. When enough is closed it stops after the piece that it is at.
func (s *Sender) pass(enough <-chan struct{}, wanted func(string) bool) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("execution state: %w", err)
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !wanted(entry.Name()) {
			continue
		}
		if err := s.sendFile(entry.Name(), enough); err != nil {
			return fmt.Errorf("execution state, %s: %w", entry.Name(), err)
		}
	}
	return nil
}

func (s *Sender) sendFile(name string, enough <-chan struct{}) error {
	file, err := os.Open(filepath.Join(s.dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if _, seen := s.sent[name]; !seen && info.Size() == 0 {
		s.sent[name] = 0
		return s.sendPiece(file, name, 0, 0)
	}
	for offset := s.sent[name]; offset < info.Size(); offset = s.sent[name] {
		select {
		case <-enough:
			return nil
		default:
		}
		length := min(info.Size()-offset, statePiece)
		send := s.sendPiece
		if s.known != nil && hasPages(name) {
			switch whole := length - length%int64(memory.PageSize()); {
			case whole > 0:
				length, send = whole, s.sendPages
			case enough != nil:
				return nil // a part of a page, which is being written
			}
		}
		if err := send(file, name, offset, length); err != nil {
			return err
		}
	}
	return nil
}

// sendPages sends a piece that may refer to pages that the target has.
func (s *Sender) sendPages(file io.ReaderAt, name string, offset, length int64) error {
	pages := make([]byte, length)
	if _, err := file.ReadAt(pages, offset); err != nil {
		return err
	}
	section, err := s.refer(name + "@" + strconv.FormatInt(offset, 10))
	if err != nil {
		return err
	}
	_, err = section.Write(s.known.encode(pages))
	s.sent[name] = offset + length
	return errors.Join(err, section.Close())
}

func (s *Sender) sendPiece(file io.ReaderAt, name string, offset, length int64) error {
	section, err := s.open(name + "@" + strconv.FormatInt(offset, 10))
	if err != nil {
		return err
	}
	_, err = io.Copy(section, io.NewSectionReader(file, offset, length))
	s.sent[name] = offset + length
	return errors.Join(err, section.Close())
}

// Receiver writes pieces to a directory in memory.
type Receiver struct {
	dir      string
	left     int64 // bytes that may still come
	received map[string]int64
}

// NewReceiver writes files to a directory, so many bytes at most.
func NewReceiver(dir string, limit int64) *Receiver {
	return &Receiver{dir: dir, left: limit, received: map[string]int64{}}
}

// Piece takes one section. Pieces of a file come in order, without gaps.
func (r *Receiver) Piece(sectionName string, content io.Reader) error {
	name, offset, err := parsePiece(sectionName)
	if err != nil {
		return err
	}
	if have, known := r.received[name]; have != offset || !known && len(r.received) >= maxStateFiles {
		return fmt.Errorf("execution state: %s comes at offset %d after %d bytes, with %d files",
			name, offset, have, len(r.received))
	}
	file, err := os.OpenFile(filepath.Join(r.dir, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	written, err := io.Copy(file, io.LimitReader(content, min(statePiece, r.left)+1))
	r.received[name] += written
	r.left -= written
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("execution state, %s: %w", name, err)
	}
	if r.left < 0 || written > statePiece {
		return fmt.Errorf("execution state: more comes than was announced, or a piece of more than %d bytes",
			statePiece)
	}
	return nil
}

// Refers takes one that refers to pages that came before.
func (r *Receiver) Refers(sectionName string, content io.Reader, known []byte) error {
	pages, err := decodeReferred(content, known)
	if err != nil {
		return err
	}
	return r.Piece(sectionName, bytes.NewReader(pages))
}

func parsePiece(section string) (name string, offset int64, err error) {
	name, digits, found := strings.Cut(section, "@")
	if !found || !stateName.MatchString(name) {
		return "", 0, fmt.Errorf("execution state: %.80q is not the name of a piece", section)
	}
	offset, err = strconv.ParseInt(digits, 10, 64)
	if err != nil || offset < 0 {
		return "", 0, fmt.Errorf("execution state: %.80q has no valid offset", section)
	}
	return name, offset, nil
}

// Check compares what has come with what the source says it sent.
func (r *Receiver) Check(sent map[string]int64) error {
	names := make([]string, 0, len(sent))
	for name := range sent {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if have, ok := r.received[name]; !ok || have != sent[name] {
			return fmt.Errorf("execution state: %.80q has %d bytes, the source sent %d",
				name, have, sent[name])
		}
	}
	if len(r.received) != len(sent) {
		return fmt.Errorf("execution state: %d files came, the source sent %d", len(r.received), len(sent))
	}
	return nil
}
