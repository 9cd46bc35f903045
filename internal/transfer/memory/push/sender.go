package push

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Sender sends the pages that stayed here, in the frozen processes, to the target, over two connections.
// Connections break and are opened again; the rest stays.
type Sender struct {
	mayPush chan struct{} // closed when the container runs at the target
	pushing sync.Once

	mu           sync.Mutex
	pages        stayed
	open         bool               // pages are
	server       *postcopy.Server   // nil: nothing has stayed here yet
	urgent, push *stream.Session    // nil: not open
	stop         context.CancelFunc // of what serves; nil: nothing does
	ended        chan error         // what serves has ended
	connections  int                // how often both were opened
	past         progress.PushBytes // over those that are closed
	remote       int64              // pages that stayed here
	fill         memory.FillReport  // as the target said last
	heardAt      time.Time          // when that was
	began        time.Time          // about when the container was handed over
	over         time.Time          // the target has all
}

// NewSender makes a sender of pages of which nothing is known yet.
func NewSender() *Sender { return &Sender{mayPush: make(chan struct{})} }

// Stay is what has stayed here when the container was handed over.
type Stay struct {
	Copy   Copy
	Spill  *Spill    // nil: not on the disk
	Waits  bool      // pages that nobody waits for stay until Begin
	Gone   bool      // nothing is left of the frozen processes that could be spilled
	Since  time.Time // when the container was handed over, about
	Remote []memory.TaskMap
	Hot    []memory.TaskMap // of these, those that are probably needed first
	Soon   []memory.RemoteFault
	Known  func(task memory.Task, address uint64, page []byte) bool
	Key    pipeline.Key  // of Known
	Silent time.Duration // for how long the target may be
}

// Make makes what gives the pages of the frozen processes. If Remote does not say which stayed here the
// target will. What is spilled then is written until ctx ends.
func (d *Sender) Make(ctx context.Context, stay Stay) error {
	pages := stayed{stay.Copy, stay.Spill}
	config := postcopy.ServerConfig{
		Pages: pages, Remote: stay.Remote, Hot: stay.Hot, Soon: stay.Soon, Known: stay.Known, Key: stay.Key,
		Report: d.heard, Silence: stay.Silent,
	}
	if stay.Waits {
		config.Push = d.mayPush
	}
	if !stay.Gone {
		config.Lacks = func(maps []memory.TaskMap) { stay.Spill.Begin(ctx, maps, pages.copied) }
	}
	server, err := postcopy.NewServer(config)
	if err != nil {
		return errors.Join(err, pages.Close())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pages, d.open, d.server, d.began = pages, true, server, stay.Since
	return nil
}

// Spill writes pages that stayed here to the disk until ctx ends, if that is wanted.
func (d *Sender) Spill(ctx context.Context, maps []memory.TaskMap) {
	d.mu.Lock()
	pages := d.pages
	d.mu.Unlock()
	pages.spill.Begin(ctx, maps, pages.copied)
}

// Made reports whether there is what gives the pages.
func (d *Sender) Made() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server != nil
}

// Stays notes how many pages stay here.
func (d *Sender) Stays(pages int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remote = pages
}

// Connected takes two new connections.
func (d *Sender) Connected(urgent, push *stream.Session) {
	d.Disconnect() // what was open and not served yet
	d.mu.Lock()
	defer d.mu.Unlock()
	d.urgent, d.push = urgent, push
	d.connections++
}

// Serve begins to serve the connections, until they break or the target has all.
func (d *Sender) Serve(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, d.stop = context.WithCancel(ctx)
	urgent, push := d.urgent, d.push
	d.ended = guard.Go(func() error { return d.server.Serve(ctx, urgent, push) })
}

// Serving reports whether somebody serves the connections, or has and was not waited for.
func (d *Sender) Serving() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop != nil
}

// Wait waits for the end of what serves. If ctx ends first, that ends too.
func (d *Sender) Wait(ctx context.Context) error {
	d.mu.Lock()
	ended := d.ended
	d.mu.Unlock()
	var err error
	select {
	case err = <-ended:
		ended <- err // whoever closes waits for it, too
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.Disconnect()
	if err == nil {
		d.mu.Lock()
		d.over = time.Now()
		d.mu.Unlock()
	}
	return err
}

// Disconnect ends what serves, and closes the connections.
func (d *Sender) Disconnect() {
	d.mu.Lock()
	stop, ended, urgent, push := d.stop, d.ended, d.urgent, d.push
	d.stop, d.ended, d.urgent, d.push = nil, nil, nil, nil
	d.past = plus(d.past, urgent, push)
	d.mu.Unlock()
	for _, session := range []*stream.Session{urgent, push} {
		if session != nil {
			_ = session.Close() // nothing is under way that matters
		}
	}
	if stop != nil {
		stop()
		<-ended //nolint:errcheck // That it has ended is all there is to know.
	}
}

// Close lets go of the frozen processes.
func (d *Sender) Close() error {
	d.Disconnect()
	d.mu.Lock()
	pages, open := d.pages, d.open
	d.open = false
	d.mu.Unlock()
	if !open {
		return nil
	}
	return pages.Close()
}

// plus adds what two connections have carried so far; nil: not open.
func plus(b progress.PushBytes, urgent, push *stream.Session) progress.PushBytes {
	if urgent != nil {
		counters := urgent.Counters()
		b.Urgent, b.Raw = b.Urgent+int64(counters.SentWireBytes), b.Raw+progress.Uncompressed(counters)
	}
	if push != nil {
		counters := push.Counters()
		b.Push, b.Raw = b.Push+int64(counters.SentWireBytes), b.Raw+progress.Uncompressed(counters)
	}
	return b
}

// heard takes what the target says of its container's memory.
func (d *Sender) heard(fill memory.FillReport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fill, d.heardAt = fill, time.Now()
}

// Begin lets pages leave for which nobody waits.
func (d *Sender) Begin() { d.pushing.Do(func() { close(d.mayPush) }) }

// Healthy reports whether the target has taken pages not longer ago than that.
func (d *Sender) Healthy(limit time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop != nil && time.Since(d.heardAt) < limit
}

// errKilled says that the target had to end the container. What is here is whole, as it was when it
// was frozen.
var errKilled = errors.New("the container was killed there, because its memory could not be completed")

// Killed reports whether the target says so.
func (d *Sender) Killed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fill.State != memory.FillLost {
		return nil
	}
	return errKilled
}

// Incomplete reports whether the target's last word on its container's memory is that it misses some.
func (d *Sender) Incomplete() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if Unfinished(d.fill) {
		return fmt.Errorf("the target says that its memory is complete, but also that %d pages are missing",
			d.fill.RemoteLeft)
	}
	return nil
}

// Bytes are what has been sent so far.
func (d *Sender) Bytes() progress.PushBytes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return plus(d.past, d.urgent, d.push)
}

// Report tells how far it is.
func (d *Sender) Report() *migration.Push {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil {
		return nil
	}
	stats := d.server.Stats()
	report := reportOf(d.fill)
	report.RemotePages = max(d.remote, report.RemotePages)
	report.UrgentPages, report.PushedPages = int64(stats.UrgentPages), int64(stats.PushedPages)
	report.Connections, report.Spill = d.connections, d.pages.spill.State()
	if d.fill.State == "" {
		report.LeftPages = report.RemotePages
	}
	end := d.over
	if end.IsZero() {
		end = time.Now()
	}
	report.Seconds = end.Sub(d.began).Seconds()
	if report.Seconds > 0 {
		report.WaitingShare = min(1, d.fill.WaitingSeconds/report.Seconds)
	}
	return &report
}
