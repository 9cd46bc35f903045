package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/wire/stream"
)

// fileTarget takes a container's files into the place where the container will find them: rounds
// over a connection of their own, and what comes in the freeze over the migration's.
type fileTarget struct {
	once  sync.Once
	ended chan struct{} // closed when no rounds come over a connection of their own (any more)

	stopping sync.Mutex              // never held while anything is waited for
	stop     context.CancelCauseFunc // of that connection; nil: there is none

	mu     sync.Mutex     // held while a round is applied, which may wait for the source
	mirror *copies.Mirror // nil: nothing has come
	whole  bool           // the last round has come
	// spoiled: a round failed here, not on the way. What has come is not to be used again.
	spoiled bool
}

// take takes one round. What was made is removed if it fails, by discard.
func (f *fileTarget) take(ctx context.Context, t *target, section io.Reader) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mirror == nil {
		f.mirror = t.newMirror()
	}
	if f.whole {
		return errors.New("files arrived after the last round of files")
	}
	in := &linkReader{Reader: section}
	last, err := f.mirror.Round(ctx, in)
	f.whole, f.spoiled = last, err != nil && !in.failed && ctx.Err() == nil
	return err
}

// finish reports whether all files are in place.
func (f *fileTarget) finish() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.whole {
		return errors.New("the final marker comes before the last round of files")
	}
	return f.mirror.Close()
}

// attachFiles takes the connection for rounds, and returns when no more come.
func (t *target) attachFiles(ctx context.Context, data *stream.Session) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if !t.files.begin(stop) {
		return errors.New("a second connection for the files of one migration, or one after its end")
	}
	defer close(t.files.ended)
	defer context.AfterFunc(ctx, func() { endFiles(data, context.Cause(ctx)) })()
	select {
	case <-t.arrived:
	case <-t.move.done:
		return nil
	case <-ctx.Done():
		return nil
	}
	for number := 0; ; number++ {
		section, err := data.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = t.takeSection(ctx, data, section, number)
		}
		if err != nil {
			_ = data.Abort(plain(err)) // the source gives up, and hears why
			return err
		}
	}
}

// endFiles ends the connection for rounds, and tells the source why. Otherwise the source, which may hear
// of this end before it hears over the control connection that the migration is undone, takes the end for
// the cause.
func endFiles(data *stream.Session, why error) {
	if errors.Is(why, errInterrupted) {
		_ = data.Abort(plain(why)) // the source may be gone
		return
	}
	_ = data.Close() // it is not needed any more
}

// takeSection does what comes over the connection.
func (t *target) takeSection(ctx context.Context, data *stream.Session, section stream.Section,
	number int) error {
	switch section.Kind {
	case kindResume:
		return t.resumeFiles(ctx, data, section)
	case kindFiles:
		if err := t.files.take(ctx, t, section); err != nil {
			return err
		}
		return tellApplied(data, number)
	}
	return fmt.Errorf("a section %.40q comes over the connection for files", section.Kind)
}

// begin reports whether this is the one connection that is taken.
func (f *fileTarget) begin(stop context.CancelCauseFunc) bool {
	first := false
	f.once.Do(func() {
		first = true
		f.stopping.Lock()
		defer f.stopping.Unlock()
		f.stop = stop
	})
	return first
}

// tellApplied tells the source that a round is in place.
func tellApplied(data *stream.Session, number int) error {
	if err := data.Begin(kindPlaced, strconv.Itoa(number)); err != nil {
		return err
	}
	return errors.Join(data.End(), data.Push())
}

// halt has nothing more be written, now or later, and tells whether what was may be used again. A round
// that is just being applied is not waited for: the source may have stopped in the middle of it. The source
// is told why, if that is still possible.
func (f *fileTarget) halt(why error) (usable bool, err error) {
	f.once.Do(func() { close(f.ended) })
	f.stopping.Lock()
	stop := f.stop
	f.stopping.Unlock()
	if stop != nil {
		stop(why)
	}
	<-f.ended
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mirror != nil {
		err = f.mirror.Close()
	}
	return !f.spoiled, err
}

// unusable reports whether what has come is not to be used again.
func (f *fileTarget) unusable() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.spoiled
}

// undo removes what has come, when nothing more does.
func (f *fileTarget) undo() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mirror == nil {
		return nil
	}
	mirror := f.mirror
	f.mirror = nil
	return mirror.Undo()
}
