package precopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
)

var (
	errNoPages = errors.New("memory arrived separately, but is part of the execution state in this mode")
	errNoKey   = errors.New("pages arrived before the key that hashes them")
)

// Receiver puts the memory of a container that arrives into a store, from which its processes are filled.
type Receiver struct {
	mu       sync.Mutex
	store    *memory.Store // nil: all memory is in the execution state
	staged   *memory.Store // of the staged copy, until they move to store; nil: nothing was staged
	goesOn   bool          // pages were staged here
	pipeline *pipeline.Receiver
	key      pipeline.Key     // of pipeline
	piped    chan struct{}    // closed when pipeline is there
	remote   []memory.TaskMap // pages that come after the restore
	before   *memory.Before   // what was here of them; nil: nothing, or it is in store
	lanes    int              // connections for pages beside the migration's own
}

// NewReceiver makes a receiver that has no store yet.
func NewReceiver() *Receiver { return &Receiver{piped: make(chan struct{})} }

// Open makes the store that memory is received into, of at most so many bytes: that of the staged copy, or an
// empty one.
func (r *Receiver) Open(limit int64) (*memory.Store, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.staged != nil {
		r.store, r.staged, r.goesOn = r.staged, nil, true
		r.store.SetLimit(limit)
		return r.store, nil
	}
	pages, err := memory.NewStore(limit)
	r.store = pages
	return pages, err
}

// TakeOver takes over the pages of the copy that was staged here, as long as there are no others.
func (r *Receiver) TakeOver(pages *memory.Store) (taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.staged != nil || r.store != nil {
		return false
	}
	r.staged = pages
	return true
}

// Ahead reports whether memory comes ahead of the execution state.
func (r *Receiver) Ahead() bool {
	store, _ := r.opened()
	return store != nil
}

// Key begins to receive pages, with the key that comes in a section, into this receiver's store.
func (r *Receiver) Key(section io.Reader, incoming Incoming) error {
	pages, goesOn := r.opened()
	if pages == nil {
		return errNoPages
	}
	if r.received() != nil {
		return errors.New("a second key for the pages of one migration")
	}
	incoming.Pages = pages
	if goesOn { // of what was staged all is here already
		incoming.Residual = nil
	}
	receiver, key, err := incoming.Receiver(section)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pipeline, r.key = receiver, key
	close(r.piped)
	return nil
}

// opened is the store, and whether it is that of a staged copy; nil: there is none.
func (r *Receiver) opened() (pages *memory.Store, goesOn bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.store, r.goesOn
}

// Incoming is what a receiver of pages is made of.
type Incoming struct {
	Data  *stream.Session // over which the source hears of them
	Pages *memory.Store
	// Barrier tells the source: see TellPlaced.
	Barrier   func(number uint64, missing []memory.TaskMap) error
	Announced bool             // the source was told of a residual copy, and may wait for its claims
	Residual  *memory.Residual // that the source may refer to; nil: none
	Most      uint64           // pages of it
}

// Receiver makes it with the key that comes in a section.
func (i Incoming) Receiver(section io.Reader) (*pipeline.Receiver, pipeline.Key, error) {
	config := pipeline.ReceiverConfig{Pages: i.Pages, Barrier: i.Barrier}
	if _, err := io.ReadFull(section, config.Key[:]); err != nil {
		return nil, config.Key, fmt.Errorf("key of the pages: %w", err)
	}
	if i.Residual != nil {
		config.Base = i.Residual
	}
	if i.Announced {
		if err := sendClaims(i.Data, config.Key, i.Residual, i.Most); err != nil {
			return nil, config.Key, err
		}
	}
	receiver, err := pipeline.NewReceiver(config)
	return receiver, config.Key, err
}

// Frame takes a frame of pages, with a buffer that it returns for the next one. How many pages come is
// bounded by what the store takes, however often they are sent.
func (r *Receiver) Frame(section io.Reader, buffer []byte) ([]byte, error) {
	return ReceiveFrame(section, buffer, r.received())
}

// received is what takes the pages; nil: nothing does yet.
func (r *Receiver) received() *pipeline.Receiver {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pipeline
}

// ReceiveFrame gives a frame to a receiver; nil: no key has come.
func ReceiveFrame(section io.Reader, buffer []byte, receiver *pipeline.Receiver) ([]byte, error) {
	if receiver == nil {
		return buffer, errNoKey
	}
	frame, err := pipeline.ReadFrame(section, buffer)
	if err != nil {
		return frame, err
	}
	return frame, receiver.Frame(frame)
}

// Map takes the map of the pages that there must be, when all of them have come.
func (r *Receiver) Map(ctx context.Context, section stream.Section) error {
	pages := r.received()
	if pages == nil {
		return errNoKey
	}
	number, err := strconv.ParseUint(section.Name, 10, 64)
	if err != nil {
		return fmt.Errorf("map of the pages: a barrier %.40q", section.Name)
	}
	maps, err := memory.DecodeMap(section)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = pages.Fail(context.Cause(ctx)) })
	defer stop()
	if err := errors.Join(pages.Await(number), pages.Complete()); err != nil {
		return err
	}
	store, _ := r.opened()
	if err := store.Remote(r.remote); err != nil {
		return err
	}
	return store.Keep(maps)
}

// Remote takes the map of the pages that come after the restore.
func (r *Receiver) Remote(section io.Reader) error {
	if !r.Ahead() {
		return errNoPages
	}
	remote, err := memory.DecodeMap(section)
	if err != nil {
		return fmt.Errorf("pages that come later: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remote = remote
	return nil
}

// Misses reports whether pages come after the restore.
func (r *Receiver) Misses() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.remote) > 0
}

// Attach receives pages over one more connection, until it ends. It waits for the key, unless over is closed.
func (r *Receiver) Attach(ctx context.Context, data *stream.Session, over <-chan struct{}) error {
	r.mu.Lock()
	r.lanes++
	lanes := r.lanes
	r.mu.Unlock()
	if lanes >= pipeline.MaxLanes {
		return fmt.Errorf("%d more connections for the pages of one migration", lanes)
	}
	stop := context.AfterFunc(ctx, func() { _ = data.Close() })
	defer stop()
	select {
	case <-r.piped:
	case <-over:
		return nil
	case <-ctx.Done():
		return nil
	}
	err := r.receiveAll(data)
	if err != nil {
		_ = r.received().Fail(fmt.Errorf("receive pages over one more connection: %w", err))
	}
	return err
}

func (r *Receiver) receiveAll(data *stream.Session) error {
	var frame []byte
	for {
		section, err := data.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if section.Kind != KindPages {
			return fmt.Errorf("a section %.40q comes over a connection for pages", section.Kind)
		}
		if frame, err = r.Frame(section, frame); err != nil {
			return err
		}
	}
}

// Before is what there was here of pages that come later, and the key with which it can be checked; nil:
// nothing.
func (r *Receiver) Before() (*memory.Before, pipeline.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.before == nil && r.store != nil {
		r.before = r.store.Before()
	}
	return r.before, r.key
}

// CloseBefore lets go of what Before returned.
func (r *Receiver) CloseBefore() error {
	before, _ := r.Before()
	if before == nil {
		return nil
	}
	r.mu.Lock()
	r.before = nil
	r.mu.Unlock()
	return before.Close()
}

// Discard gives back the memory of an arrival that never ran.
func (r *Receiver) Discard() error {
	r.mu.Lock()
	pages := r.store
	r.store = nil
	r.mu.Unlock()
	if pages == nil {
		return nil
	}
	return pages.Close()
}

// CloseStaged gives back the memory of a staged copy that was taken over and not used.
func (r *Receiver) CloseStaged() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.staged == nil {
		return nil
	}
	staged := r.staged
	r.staged = nil
	return staged.Close()
}
