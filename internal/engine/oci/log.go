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

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
)

// logName is the name of the log in the private directory.
const logName = "log"

// copyLog updates the copy, in the private directory, of a container's log that moves: it appends new
// output. It also updates the files of a FileMigrator.
func (e *Engine) copyLog(id string, a alive) error {
	if err := makePrivate(e.private(id)); err != nil {
		return err
	}
	if migrator, is := e.adapter.(FileMigrator); is {
		if err := migrator.Keep(a.found, e.private(id)); err != nil {
			return fmt.Errorf("files of container %s: %w", a.found.name(), err)
		}
	}
	name := filepath.Join(e.private(id), logName)
	if a.log == "" {
		return durable.Remove(name)
	}
	if err := e.appendLog(id, name, a.log); err != nil {
		return fmt.Errorf("log of container %s: %w", a.found.name(), err)
	}
	return nil
}

func (e *Engine) appendLog(id, name, path string) error {
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
		same, blank, err = e.sameLog(id, info, from)
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

// copiedLog is a log that was copied without its leading blanks, the unused part of the room that an
// adapter made when the container came here.
type copiedLog struct {
	info  os.FileInfo
	blank int64
}

// sameLog reports whether a file is the log that was copied last, and how many blanks precede its contents.
// It can be another file, because engines rotate large logs.
func (e *Engine) sameLog(id string, now os.FileInfo, log io.Reader) (same bool, blank int64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was, known := e.logs[id]
	if known && os.SameFile(was.info, now) {
		return true, was.blank, nil
	}
	if blank, err = Blanks(log); err == nil {
		e.logs[id] = copiedLog{now, blank}
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

// bringKept installs the files of a FileMigrator.
func (a *arrival) bringKept() error {
	migrator, is := a.engine.adapter.(FileMigrator)
	if !is {
		return nil
	}
	if err := migrator.Bring(a.engineID, a.engine.private(a.definition.ID), a.definition); err != nil {
		return fmt.Errorf("files of the container: %w", err)
	}
	return nil
}

// carryLog puts the source engine's log before the output that will be logged here. The engine has opened
// an empty log and written nothing yet.
func (a *arrival) carryLog() error {
	came := filepath.Join(a.engine.private(a.definition.ID), logName)
	info, err := os.Lstat(came)
	if errors.Is(err, os.ErrNotExist) || a.log == "" {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() { // another node has sent it
		return errors.New("the log that has come is not a regular file")
	}
	from, err := os.Open(came)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(a.log, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("log of the container: %w", err)
	}
	if err := errors.Join(fillLog(to, from), to.Close()); err != nil {
		return fmt.Errorf("log of the container: %w", err)
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
