package push

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Container is the arrived container, whose memory is being filled.
type Container interface {
	// RemotePages connects to the process that fills the memory, or fails with engine.ErrNotFilling.
	RemotePages(ctx context.Context) (memory.RemotePages, error)
	// Memory reports how far the memory is filled.
	Memory(ctx context.Context) (memory.FillReport, error)
	// AwaitFilling waits until the process that fills the memory of an arrival exists.
	AwaitFilling(ctx context.Context) error
	// HasRun reports whether the container is known to have run here.
	HasRun() bool
}

// Received has what the target already had of remote pages. precopy.Receiver implements it.
type Received interface {
	Before() (*memory.Before, pipeline.Key)
	CloseBefore() error
	Misses() bool
}

// ReceiverConfig configures a Receiver.
type ReceiverConfig struct {
	Container Container
	Received  Received
	Name      string // of the container
	Figures   *progress.Tracker
	// Now reports how far the memory is filled, for a report.
	Now     func() (memory.FillReport, error)
	Silence time.Duration // for how long nothing may come from the source
}

// Receiver joins the two connections that carry remote pages, and hands the pages to the process that fills
// the container's memory.
type Receiver struct {
	config ReceiverConfig
	pairs  pairs

	mu   sync.Mutex
	lost memory.FillReport // when pages were given up; zero: none were
	key  []byte            // of pages on the source's disk; nil: none is known
}

// NewReceiver makes a receiver without connections.
func NewReceiver(config ReceiverConfig) *Receiver { return &Receiver{config: config} }

// signsOfLife is how many signs are sent in the time after which silence counts as loss: some may be late.
const signsOfLife = 5

// Attach takes one of the two connections, and returns when neither is needed any more. over returns a
// channel that is closed when the migration ends, or nil if the migration has ended.
func (t *Receiver) Attach(ctx context.Context, hello stream.Hello, session *stream.Session,
	over func() <-chan struct{}) error {
	pair, complete := t.pairs.join(ctx, hello, session)
	done := over()
	if complete != nil && done == nil {
		pair.end(t.ended(complete, pair))
	} else if complete != nil {
		pair.end(t.bring(complete, pair))
	}
	select {
	case <-pair.ended:
		return pair.err
	case <-done:
		return nil
	case <-ctx.Done():
		return nil
	}
}

// ended tells the source that the target needs nothing more: an operator has ended the migration here.
func (t *Receiver) ended(ctx context.Context, pair *pair) error {
	client, err := postcopy.NewClient(postcopy.ClientConfig{Silence: t.config.Silence})
	if err != nil {
		return err
	}
	return client.Run(ctx, pair.sessions[PurposeUrgent], pair.sessions[PurposePush])
}

// bring takes pages from a pair of connections to the process that fills the container's memory.
func (t *Receiver) bring(ctx context.Context, pair *pair) error {
	if err := t.config.Container.AwaitFilling(ctx); err != nil {
		return err
	}
	pages, err := t.config.Container.RemotePages(ctx)
	if errors.Is(err, engine.ErrNotFilling) { // the container has all its memory, or has ended
		err = t.nothingMissing(ctx)
	}
	if err != nil {
		return err
	}
	t.config.Figures.Pushes(t.Report, nil)
	silence := t.config.Silence
	config := postcopy.ClientConfig{
		Pages: pages, Fill: t.config.Container.Memory, Every: silence / signsOfLife, Silence: silence,
	}
	if before, key := t.config.Received.Before(); before != nil {
		config.Before, config.Key = before, key
	}
	client, err := postcopy.NewClient(config)
	if err == nil {
		err = client.Run(ctx, pair.sessions[PurposeUrgent], pair.sessions[PurposePush])
	}
	if errors.Is(err, postcopy.ErrStale) {
		err = errors.Join(err, t.config.Received.CloseBefore()) // whole pages from now on
	}
	if pages != nil {
		err = errors.Join(err, pages.Close())
	}
	return err
}

// nothingMissing fails unless it is certain that no page is missing: the source gives up its copy when it
// hears that.
func (t *Receiver) nothingMissing(ctx context.Context) error {
	fill, err := t.config.Container.Memory(ctx)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if Unfinished(fill) {
		return fmt.Errorf("the pager of %s does not answer, and %d pages are missing",
			t.config.Name, fill.RemoteLeft)
	}
	if fill.State == memory.FillNone && !t.config.Container.HasRun() {
		return fmt.Errorf("nothing fills the memory of %s yet", t.config.Name)
	}
	return nil
}

// Watch tells when a restore may wait for a page which cannot come any more: the source opens
// other connections only when the container runs here. It returns then, or when over is closed.
func (t *Receiver) Watch(over <-chan struct{}, silent func(patience time.Duration)) {
	if !t.config.Received.Misses() {
		return
	}
	patience := t.config.Silence
	ticker := time.NewTicker(patience / signsOfLife)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-over:
			return
		case <-ticker.C:
		}
		if t.pairs.connected() {
			last = time.Now()
		} else if time.Since(last) > patience {
			silent(patience)
			return
		}
	}
}

// Report tells how far the container's memory is, until the source's report tells it.
func (t *Receiver) Report() *migration.Push {
	fill, err := t.config.Now()
	if err != nil || fill.RemotePages == 0 { // the container may have ended, and its report is gone with it
		t.mu.Lock()
		fill = t.lost
		t.mu.Unlock()
	}
	if fill.RemotePages == 0 {
		return nil
	}
	report := reportOf(fill)
	report.Spill = t.spilled()
	if !fill.Resumed.IsZero() {
		report.Seconds = fill.FillSeconds
	}
	return &report
}

// Lost keeps what was given up: a container that touches it may end at once.
func (t *Receiver) Lost(fill memory.FillReport) {
	fill.LostPages, fill.RemoteLeft = fill.RemoteLeft, 0
	t.mu.Lock()
	t.lost = fill
	t.mu.Unlock()
	t.config.Figures.Pushes(t.Report, nil) // after a restart of the agent nothing has done it
}

// Connected reports whether both connections stand, as far as is known.
func (t *Receiver) Connected() bool { return t.pairs.connected() }

// Close ends the use of the connections, and all who wait for them.
func (t *Receiver) Close() { t.pairs.close() }

// KeepSpillKey keeps a key unless the migration is over, and returns the one that is kept. An empty one
// changes nothing.
func (t *Receiver) KeepSpillKey(key []byte, over func() bool) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(key) > 0 && !over() {
		t.key = key
	}
	return t.key
}

// spilled is what is known here of the pages on the source's disk.
func (t *Receiver) spilled() migration.SpillState {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.key == nil {
		return ""
	}
	return migration.SpillComplete
}
