package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/kept"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Arrival is the container that comes.
type Arrival interface {
	// Ready is closed when there is a place for each of its trees.
	Ready() <-chan struct{}
	// Place returns where a tree goes. It is called when the arrival is ready.
	Place() copies.Place
	// Salvage calls take for each tree of an arrival that never ran. See engine.Engine.
	Salvage(ctx context.Context, take func(files.Tree) error) error
	// Ended is closed when the migration has ended on this node.
	Ended() <-chan struct{}
}

// ReceiverConfig is what a Receiver is made of.
type ReceiverConfig struct {
	Migration    migration.Spec
	Arrival      Arrival
	OfferedBytes int64 // the size of the files, as the source has told it
	Kept         *kept.Copies
	Interrupted  error  // why the connection for rounds is ended, if the source has to hear that
	Dir          string // for what is told of files that are here, which may be much
	Cores        int    // of this node
	Log          *slog.Logger
}

// Receiver takes a container's files into the place where the container will find them: rounds
// over a connection of their own, and what comes in the freeze over the migration's.
type Receiver struct {
	config ReceiverConfig

	once  sync.Once
	ended chan struct{} // closed when no rounds come over a connection of their own (any more)

	stopping sync.Mutex              // never held while anything is waited for
	stop     context.CancelCauseFunc // of that connection; nil: there is none

	mu     sync.Mutex     // held while a round is applied, which may wait for the source
	mirror *copies.Mirror // nil: nothing has come
	whole  bool           // the last round has come
	// spoiled: a round failed here, not on the way. What has come is not to be used again.
	spoiled bool

	using sync.Mutex // guards used
	used  *kept.Copy // files of an earlier attempt; nil: nothing
}

// NewReceiver makes a Receiver to which nothing has come yet.
func NewReceiver(config ReceiverConfig) *Receiver {
	return &Receiver{config: config, ended: make(chan struct{})}
}

// Take takes one round. What was made is removed if it fails, by Undo.
func (r *Receiver) Take(ctx context.Context, section io.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mirror == nil {
		r.mirror = r.newMirror()
	}
	if r.whole {
		return errors.New("files arrived after the last round of files")
	}
	in := &linkReader{Reader: section}
	last, err := r.mirror.Round(ctx, in)
	r.whole, r.spoiled = last, err != nil && !in.failed && ctx.Err() == nil
	return err
}

func (r *Receiver) newMirror() *copies.Mirror {
	return copies.NewMirror(r.config.Arrival.Place(), limits(r.config.OfferedBytes))
}

// linkReader notes that it was the link that failed, and not what came over it.
type linkReader struct {
	io.Reader
	failed bool
}

func (l *linkReader) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	l.failed = l.failed || err != nil && !errors.Is(err, io.EOF)
	return n, err
}

// Between does something while no round is applied.
func (r *Receiver) Between(do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return do()
}

// Finish reports whether all files are in place.
func (r *Receiver) Finish() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.whole {
		return errors.New("the final marker comes before the last round of files")
	}
	return r.mirror.Close()
}

// Attach takes the connection for rounds, and returns when no more come.
func (r *Receiver) Attach(ctx context.Context, data *stream.Session) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if !r.begin(stop) {
		return errors.New("a second connection for the files of one migration, or one after its end")
	}
	defer close(r.ended)
	defer context.AfterFunc(ctx, func() { r.endConnection(data, context.Cause(ctx)) })()
	select {
	case <-r.config.Arrival.Ready():
	case <-r.config.Arrival.Ended():
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
			err = r.takeSection(ctx, data, section, number)
		}
		if err != nil {
			_ = data.Abort(api.Plain(err)) // the source gives up, and hears why
			return err
		}
	}
}

// begin reports whether this is the one connection that is taken.
func (r *Receiver) begin(stop context.CancelCauseFunc) bool {
	first := false
	r.once.Do(func() {
		first = true
		r.stopping.Lock()
		defer r.stopping.Unlock()
		r.stop = stop
	})
	return first
}

// endConnection ends the connection for rounds, and tells the source why. Otherwise the source, which may
// hear of this end before it hears over the control connection that the migration is undone, takes the end
// for the cause.
func (r *Receiver) endConnection(data *stream.Session, why error) {
	if errors.Is(why, r.config.Interrupted) {
		_ = data.Abort(api.Plain(why)) // the source may be gone
		return
	}
	_ = data.Close() // it is not needed any more
}

// takeSection does what comes over the connection.
func (r *Receiver) takeSection(ctx context.Context, data *stream.Session, section stream.Section,
	number int) error {
	switch section.Kind {
	case kindResume:
		return r.resume(ctx, data, section)
	case KindRound:
		if err := r.Take(ctx, section); err != nil {
			return err
		}
		return tellPlaced(data, number)
	}
	return fmt.Errorf("a section %.40q comes over the connection for files", section.Kind)
}

// tellPlaced tells the source that a round is in place.
func tellPlaced(data *stream.Session, number int) error {
	if err := data.Begin(kindPlaced, strconv.Itoa(number)); err != nil {
		return err
	}
	return errors.Join(data.End(), data.Push())
}

// Halt has nothing more be written, now or later, and tells whether what was may be used again. A round
// that is just being applied is not waited for: the source may have stopped in the middle of it. The source
// is told why, if that is still possible.
func (r *Receiver) Halt(why error) (usable bool, err error) {
	r.once.Do(func() { close(r.ended) })
	r.stopping.Lock()
	stop := r.stop
	r.stopping.Unlock()
	if stop != nil {
		stop(why)
	}
	<-r.ended
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mirror != nil {
		err = r.mirror.Close()
	}
	return !r.spoiled, err
}

// unusable reports whether what has come is not to be used again.
func (r *Receiver) unusable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spoiled
}

// Undo removes what has come, when nothing more does.
func (r *Receiver) Undo() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mirror == nil {
		return nil
	}
	mirror := r.mirror
	r.mirror = nil
	return mirror.Undo()
}
