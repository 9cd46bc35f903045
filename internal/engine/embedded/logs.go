package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// followPause is the pause between two reads of a log that is followed.
const followPause = 50 * time.Millisecond

// Logs calls emit for each piece of output, oldest first.
func (e *Engine) Logs(ctx context.Context, id string, options engine.LogOptions,
	emit func(engine.LogEntry) error) error {
	files, err := e.find(id)
	if err != nil {
		return err
	}
	file, err := os.Open(files.log())
	if errors.Is(err, fs.ErrNotExist) && !options.Follow {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) { // the container was not started yet: its log begins empty
		file, err = os.OpenFile(files.log(), os.O_CREATE|os.O_RDONLY, 0o600)
	}
	if err != nil {
		return fmt.Errorf("read log of container %.12s: %w", id, err)
	}
	defer file.Close()
	if options.Tail >= 0 {
		if err := seekTail(file, options.Tail); err != nil {
			return fmt.Errorf("read log of container %.12s: %w", id, err)
		}
	}
	return e.emitAll(ctx, id, newLogReader(file), options.Follow, emit)
}

func seekTail(file *os.File, lines int) error {
	offset, err := tailOffset(file, lines)
	if err != nil {
		return err
	}
	_, err = file.Seek(offset, io.SeekStart)
	return err
}

func (e *Engine) emitAll(ctx context.Context, id string, reader *logReader, follow bool,
	emit func(engine.LogEntry) error) error {
	over := !follow
	for {
		entry, err := reader.next()
		switch {
		case err == nil:
			if err := emit(entry); err != nil {
				return err
			}
			continue
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("read log of container %.12s: %w", id, err)
		case over:
			return nil
		}
		// The log is read once more after the state, so output before the end is not missed.
		if over = e.ended(id); over {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPause):
		}
	}
}

// ended reports whether a container will write no more here: it has ended, or is gone.
func (e *Engine) ended(id string) bool {
	ctr, err := e.inspect(id)
	return errors.Is(err, engine.ErrNotFound) || err == nil && ctr.State == engine.Exited
}
