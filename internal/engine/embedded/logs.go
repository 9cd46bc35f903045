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
	"github.com/godwit/godwit/internal/engine/embedded/output"
)

// followPause is the pause between two reads of a log that is followed.
const followPause = 50 * time.Millisecond

// logs reads what containers have written.
type logs struct{ catalog *catalog }

// Logs calls emit for each piece of output, oldest first.
func (l *logs) Logs(ctx context.Context, id string, options engine.LogOptions,
	emit func(engine.LogEntry) error) error {
	files, err := l.catalog.find(id)
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
		if err := output.SeekTail(file, options.Tail); err != nil {
			return fmt.Errorf("read log of container %.12s: %w", id, err)
		}
	}
	return l.emitAll(ctx, id, output.NewReader(file), options.Follow, emit)
}

func (l *logs) emitAll(ctx context.Context, id string, reader *output.Reader, follow bool,
	emit func(engine.LogEntry) error) error {
	over := !follow
	for {
		entry, err := reader.Next()
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
		if over = l.ended(id); over {
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
func (l *logs) ended(id string) bool {
	ctr, err := l.catalog.inspect(id)
	return errors.Is(err, engine.ErrNotFound) || err == nil && ctr.State == engine.Exited
}
