package oci

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/godwit/godwit/internal/durable"
)

// logName is the name of the log in the private directory.
const logName = "log"

// copyLog updates the copy, in the private directory, of a container's log that moves: it appends new
// output. It also updates the files of a FileMigrator.
func (l *logs) copyLog(id string, a alive) error {
	if err := makePrivate(l.records.private(id)); err != nil {
		return err
	}
	if migrator, is := l.adapter.(FileMigrator); is {
		if err := migrator.Keep(a.found, l.records.private(id)); err != nil {
			return fmt.Errorf("files of container %s: %w", a.found.name(), err)
		}
	}
	name := filepath.Join(l.records.private(id), logName)
	if a.log == "" {
		return durable.Remove(name)
	}
	if err := l.appendLog(id, name, a.log); err != nil {
		return fmt.Errorf("log of container %s: %w", a.found.name(), err)
	}
	return nil
}

func (l *logs) appendLog(id, name, path string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := from.Stat()
	at, blank, same := int64(0), int64(0), false
	if err == nil {
		same, blank, err = l.sameLog(id, info, from)
	}
	if err == nil && same {
		at, err = to.Seek(0, io.SeekEnd)
	}
	if err == nil && blank+at > info.Size() { // the log was truncated
		at, blank = 0, 0
	}
	if err == nil && at == 0 {
		err = errors.Join(to.Truncate(0), seek(to, 0))
	}
	if err == nil {
		err = seek(from, blank+at)
	}
	if err == nil {
		_, err = io.Copy(to, from)
	}
	return errors.Join(err, to.Close())
}

func seek(f *os.File, at int64) error {
	_, err := f.Seek(at, io.SeekStart)
	return err
}

// logs copies the engine's logs of leaving containers.
type logs struct {
	adapter Adapter
	records *records

	mu   sync.Mutex
	seen map[string]copiedLog // by ID
}

// copiedLog is a log that was copied without its leading blanks, the unused part of the room that an
// adapter made when the container came here.
type copiedLog struct {
	info  os.FileInfo
	blank int64
}

// sameLog reports whether a file is the log that was copied last, and how many blanks precede its contents.
// It can be another file, because engines rotate large logs.
func (l *logs) sameLog(id string, now os.FileInfo, log io.Reader) (same bool, blank int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, known := l.seen[id]
	if known && os.SameFile(was.info, now) {
		return true, was.blank, nil
	}
	if blank, err = Blanks(log); err == nil {
		l.seen[id] = copiedLog{now, blank}
	}
	return false, blank, err
}

// Blanks counts the blanks at the beginning of a log.
func Blanks(log io.Reader) (count int64, err error) {
	piece := make([]byte, logPiece)
	for {
		n, err := log.Read(piece)
		rest := len(bytes.TrimLeft(piece[:n], " "))
		count += int64(n - rest)
		if errors.Is(err, io.EOF) || rest > 0 {
			return count, nil
		}
		if err != nil {
			return count, err
		}
	}
}

func makePrivate(path string) error { return os.MkdirAll(path, 0o700) }

// ownLog requires a log to be in the engine's directory of the container, because data from another node is
// written to it.
func ownLog(path string, found Container) error {
	if path == "" || found.Directory == "" {
		return nil
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path ||
		!strings.HasPrefix(path, filepath.Clean(found.Directory)+"/") {
		return fmt.Errorf("its log %.80q would not be in %s", path, found.Directory)
	}
	return nil
}

// fillLog writes a log into an empty file, or to the end of the blanks with which an adapter has reserved
// room for it. If the log is larger than the room, fillLog leaves out the oldest lines: the engine reads no
// more. If the file has other contents, the log is appended to them.
func fillLog(to, from *os.File) error {
	room, end, err := roomIn(to)
	if err != nil {
		return err
	}
	info, err := from.Stat()
	if err != nil {
		return err
	}
	in, size := bufio.NewReaderSize(from, logPiece), info.Size()
	for room > 0 && size > room {
		line, err := in.ReadSlice('\n')
		size -= int64(len(line))
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of a long line
			line, err = in.ReadSlice('\n')
			size -= int64(len(line))
		}
	}
	at := end
	if room > 0 {
		at = max(room-size, 0)
	}
	if err := seek(to, at); err != nil {
		return err
	}
	_, err = io.CopyN(to, in, size)
	return err
}

// roomIn returns the number of blanks if the file has nothing else, and the file's size.
func roomIn(log *os.File) (room, end int64, err error) {
	info, err := log.Stat()
	if err != nil {
		return 0, 0, err
	}
	blank, err := Blanks(log)
	if blank != info.Size() {
		blank = 0
	}
	return blank, info.Size(), err
}

// logPiece is the size of the buffer for reading a log.
const logPiece = 256 << 10
