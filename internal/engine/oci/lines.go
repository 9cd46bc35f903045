package oci

import (
	"bytes"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// maxLine bounds the length of an entry: the rest of a longer line becomes another entry.
const maxLine = 1 << 20

// Lines splits an engine's log output into entries. Each line has its time, a space, and the logged line.
type Lines struct {
	stream string
	emit   func(engine.LogEntry) error
	rest   []byte
}

// NewLines returns Lines for one stream.
func NewLines(stream string, emit func(engine.LogEntry) error) *Lines {
	return &Lines{stream: stream, emit: emit}
}

// Write takes the engine's output.
func (l *Lines) Write(data []byte) (int, error) {
	l.rest = append(l.rest, data...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		switch {
		case end >= 0:
			end++
		case len(l.rest) >= maxLine:
			end = maxLine
		default:
			return len(data), nil
		}
		if err := l.take(end); err != nil {
			return 0, err
		}
	}
}

// Flush emits the last line if it has no line end.
func (l *Lines) Flush() error {
	if len(l.rest) == 0 {
		return nil
	}
	return l.take(len(l.rest))
}

// take emits the first n bytes.
func (l *Lines) take(n int) error {
	entry := engine.LogEntry{Stream: l.stream, Data: bytes.Clone(l.rest[:n])}
	l.rest = l.rest[n:]
	if stamp, text, found := bytes.Cut(entry.Data, []byte(" ")); found {
		if at, err := time.Parse(time.RFC3339Nano, string(stamp)); err == nil {
			entry.Time, entry.Data = at, text
		}
	}
	return l.emit(entry)
}
