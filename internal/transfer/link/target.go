package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/stream"
)

// KindStaged is the section after which nothing more comes before the freeze.
const KindStaged = "staged"

// Target is the target's end of the first data connection.
type Target struct {
	once   sync.Once
	data   *stream.Session
	staged chan struct{} // closed when the source has staged, with err
	err    error

	answering sync.Mutex // held while the source is told something
}

// NewTarget waits for the connection.
func NewTarget() *Target { return &Target{staged: make(chan struct{})} }

// Attach takes the connection and waits for what comes over it first. Not first: there is one already.
func (t *Target) Attach(data *stream.Session, log *slog.Logger) (first bool) {
	t.once.Do(func() {
		first = true
		t.data = data
		go guard.Logged(log, func() {
			t.err = guard.Do(t.stage)
			close(t.staged)
		})()
	})
	return first
}

// stage waits until the source says that all is here that comes before the freeze.
func (t *Target) stage() error {
	section, err := t.data.Next()
	if err == nil && section.Kind != KindStaged {
		err = fmt.Errorf("stage: a section %.40q comes before the freeze", section.Kind)
	}
	return err
}

// AwaitStaged waits until the source has staged.
func (t *Target) AwaitStaged(ctx context.Context) error {
	select {
	case <-t.staged:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Data is the connection. Before the source has staged there may be none.
func (t *Target) Data() *stream.Session { return t.data }

// Answer tells the source something.
func (t *Target) Answer(kind, name string) error {
	return t.Answering(func(data *stream.Session) error {
		if err := data.Begin(kind, name); err != nil {
			return err
		}
		return errors.Join(data.End(), data.Push())
	})
}

// Answering calls write while nobody else tells the source anything.
func (t *Target) Answering(write func(*stream.Session) error) error {
	t.answering.Lock()
	defer t.answering.Unlock()
	return write(t.data)
}
