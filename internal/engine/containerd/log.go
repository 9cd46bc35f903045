package containerd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/godwit/godwit/internal/engine"
)

// pieceBytes is how much of a log is in memory at a time. A longer line is emitted in pieces.
const pieceBytes = 64 << 10

// show emits a log. If the reader follows the log, show also emits what is added until the container has
// ended.
func (a *adapter) show(
	ctx context.Context, engineID, path string, options engine.LogOptions, emit func(engine.LogEntry) error,
) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	at := int64(0)
	if options.Tail >= 0 {
		if at, err = lastLines(file, info.Size(), options.Tail); err != nil {
			return err
		}
	}
	if _, err := file.Seek(at, io.SeekStart); err != nil {
		return err
	}
	if !options.Follow {
		return emitLines(ctx, io.LimitReader(file, info.Size()-at), emit)
	}
	for {
		found, err := a.Find(ctx, engineID)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		if err := emitLines(ctx, file, emit); err != nil || found.Container.State != engine.Running {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// emitLines emits the available data, line by line.
func emitLines(ctx context.Context, r io.Reader, emit func(engine.LogEntry) error) error {
	lines := bufio.NewReaderSize(r, pieceBytes)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			if err := emit(engine.LogEntry{Stream: "stdout", Data: bytes.Clone(line)}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return ctx.Err()
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// lastLines returns the offset at which the last lines of a log of this size begin.
func lastLines(log io.ReaderAt, size int64, count int) (int64, error) {
	if count == 0 {
		return size, nil
	}
	piece := make([]byte, pieceBytes)
	for end := size; end > 0; {
		begin := max(0, end-pieceBytes)
		read := piece[:end-begin]
		if n, err := log.ReadAt(read, begin); n < len(read) {
			return 0, fmt.Errorf("the log became shorter while it was read: %w", err)
		}
		for at := bytes.LastIndexByte(read, '\n'); at >= 0; at = bytes.LastIndexByte(read[:at], '\n') {
			after := begin + int64(at) + 1
			if after == size { // the end of the last line
				continue
			}
			if count--; count == 0 {
				return after, nil
			}
		}
		end = begin
	}
	return 0, nil
}
