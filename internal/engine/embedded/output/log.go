package output

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// The log has one line for each piece of output, in the format that Kubernetes' container runtimes use:
//
//	2026-11-20T10:00:00.123456789Z stdout F a whole line
//	2026-11-20T10:00:00.123456789Z stdout P a piece that does not end with a newline
//
// The log is complete to the byte: F stands for the newline that the container wrote, P for none.
const (
	logTime     = "2006-01-02T15:04:05.000000000Z"
	maxLogPiece = 32 << 10
	maxLogLine  = maxLogPiece + 128
)

// errLogLine is wrapped by errors of parseLogLine.
var errLogLine = errors.New("not a line of a container log")

// logWriter appends to a container's log. Each call is one write to the file, so that a crash
// leaves whole lines.
type logWriter struct {
	file *os.File
	line bytes.Buffer
}

// openLog opens a log for appending. A line that a crash of the machine left unfinished is ended.
func openLog(path string) (*logWriter, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if err := endLastLine(file); err != nil {
		file.Close()
		return nil, fmt.Errorf("repair log %s: %w", path, err)
	}
	return &logWriter{file: file}, nil
}

func endLastLine(file *os.File) error {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = file.Write([]byte{'\n'})
	return err
}

// write appends output of a stream. After an error the output is kept, and flush tries again:
// nothing is lost or written twice.
func (w *logWriter) write(now time.Time, stream string, data []byte) error {
	prefix := now.UTC().Format(logTime) + " " + stream
	for len(data) > 0 {
		piece, tag := data[:min(len(data), maxLogPiece)], " P "
		if i := bytes.IndexByte(piece, '\n'); i >= 0 {
			piece, tag = piece[:i], " F "
			data = data[i+1:]
		} else {
			data = data[len(piece):]
		}
		w.line.WriteString(prefix)
		w.line.WriteString(tag)
		w.line.Write(piece)
		w.line.WriteByte('\n')
	}
	return w.flush()
}

// flush writes pending output to the file.
func (w *logWriter) flush() error {
	if w.line.Len() == 0 {
		return nil
	}
	if _, err := w.line.WriteTo(w.file); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	return nil
}

func (w *logWriter) close() error { return w.file.Close() }

// parseLogLine reads one line, without its newline.
func parseLogLine(line []byte) (engine.LogEntry, error) {
	var entry engine.LogEntry
	parts := bytes.SplitN(line, []byte{' '}, 4)
	if len(parts) != 4 {
		return entry, fmt.Errorf("%w: %d fields", errLogLine, len(parts))
	}
	stamp, err := time.Parse(time.RFC3339Nano, string(parts[0]))
	if err != nil {
		return entry, fmt.Errorf("%w: its time: %w", errLogLine, err)
	}
	entry.Time, entry.Stream = stamp, string(parts[1])
	if entry.Stream != "stdout" && entry.Stream != "stderr" {
		return entry, fmt.Errorf("%w: stream %.20q", errLogLine, entry.Stream)
	}
	entry.Data = bytes.Clone(parts[3])
	switch string(parts[2]) {
	case "F":
		entry.Data = append(entry.Data, '\n')
	case "P":
	default:
		return entry, fmt.Errorf("%w: tag %.20q", errLogLine, parts[2])
	}
	return entry, nil
}

// Reader reads a log that may be growing. It skips invalid lines: a crash may have truncated one.
type Reader struct {
	buffer  *bufio.Reader
	pending []byte // the beginning of an unfinished line
}

// NewReader makes a reader of a log, or of a part of one that begins with a line.
func NewReader(r io.Reader) *Reader {
	return &Reader{buffer: bufio.NewReaderSize(r, maxLogLine)}
}

// Next returns the next entry, or io.EOF when there is none yet.
func (r *Reader) Next() (engine.LogEntry, error) {
	for {
		piece, err := r.buffer.ReadSlice('\n')
		r.pending = append(r.pending, piece...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return engine.LogEntry{}, err
		}
		if len(r.pending) > maxLogLine {
			r.pending = r.pending[:maxLogLine] // keeps the line invalid or truncated, and memory bounded
		}
		if err != nil {
			continue
		}
		entry, parseErr := parseLogLine([]byte(strings.TrimSuffix(string(r.pending), "\n")))
		r.pending = r.pending[:0]
		if parseErr == nil {
			return entry, nil
		}
	}
}

// SeekTail moves to where the last lines of output begin.
func SeekTail(file *os.File, lines int) error {
	offset, err := tailOffset(file, lines)
	if err != nil {
		return err
	}
	_, err = file.Seek(offset, io.SeekStart)
	return err
}

// tailOffset finds where the last n lines of output begin. Pieces of one line count as one.
func tailOffset(file *os.File, n int) (int64, error) {
	reader := NewReader(file)
	starts := make([]int64, 0, n+1)
	within, position := map[string]bool{}, int64(0) // streams in the middle of a line
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if !within[entry.Stream] {
			if starts = append(starts, position); len(starts) > n {
				starts = starts[1:]
			}
		}
		within[entry.Stream] = !bytes.HasSuffix(entry.Data, []byte{'\n'})
		at, err := file.Seek(0, io.SeekCurrent)
		if err != nil {
			return 0, err
		}
		position = at - int64(reader.buffer.Buffered())
	}
	if n == 0 || len(starts) == 0 {
		return position, nil
	}
	return starts[0], nil
}
