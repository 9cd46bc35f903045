package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// pusher sends the pages that stayed here, in the frozen processes, to the target, over two connections.
// Connections break and are opened again; the rest stays.
type pusher struct {
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

// have takes what gives the pages, and since when that is needed.
func (d *pusher) have(pages stayed, server *postcopy.Server, since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pages, d.open, d.server, d.began = pages, true, server, since
}

func (d *pusher) made() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server != nil
}

// stays notes how many pages stay here.
func (d *pusher) stays(pages int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remote = pages
}

// connected takes two new connections.
func (d *pusher) connected(urgent, push *stream.Session) {
	d.disconnect() // what was open and not served yet
	d.mu.Lock()
	defer d.mu.Unlock()
	d.urgent, d.push = urgent, push
	d.connections++
}

// serve begins to serve the connections, until they break or the target has all.
func (d *pusher) serve(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, d.stop = context.WithCancel(ctx)
	urgent, push := d.urgent, d.push
	d.ended = guard.Go(func() error { return d.server.Serve(ctx, urgent, push) })
}

// serving tells whether somebody serves the connections, or has and was not waited for.
func (d *pusher) serving() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop != nil
}

// wait waits for the end of what serves. If ctx ends first, that ends too.
func (d *pusher) wait(ctx context.Context) error {
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
	d.disconnect()
	if err == nil {
		d.mu.Lock()
		d.over = time.Now()
		d.mu.Unlock()
	}
	return err
}

// disconnect ends what serves, and closes the connections.
func (d *pusher) disconnect() {
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

// close lets go of the frozen processes.
func (d *pusher) close() error {
	d.disconnect()
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
func (d *pusher) heard(fill memory.FillReport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fill, d.heardAt = fill, time.Now()
}

// begin lets pages leave for which nobody waits.
func (d *pusher) begin() { d.pushing.Do(func() { close(d.mayPush) }) }

// healthy tells whether the target has taken pages not longer ago than that.
func (d *pusher) healthy(limit time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop != nil && time.Since(d.heardAt) < limit
}

// errKilled says that the target had to end the container. What is here is whole, as it was when it
// was frozen.
var errKilled = errors.New("the container was killed there, because its memory could not be completed")

// killed tells whether the target says so.
func (d *pusher) killed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fill.State != memory.FillLost {
		return nil
	}
	return errKilled
}

// incomplete tells whether the target's last word on its container's memory is that it misses some.
func (d *pusher) incomplete() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if unfinished(d.fill) {
		return fmt.Errorf("the target says that its memory is complete, but also that %d pages are missing",
			d.fill.RemoteLeft)
	}
	return nil
}

// bytes are what has been sent so far.
func (d *pusher) bytes() progress.PushBytes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return plus(d.past, d.urgent, d.push)
}

// report tells how far it is.
func (d *pusher) report() *migration.Push {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil {
		return nil
	}
	stats := d.server.Stats()
	report := pushReport(d.fill)
	report.RemotePages = max(d.remote, report.RemotePages)
	report.UrgentPages, report.PushedPages = int64(stats.UrgentPages), int64(stats.PushedPages)
	report.Connections, report.Spill = d.connections, d.pages.spill.now()
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

// pushReport is the part of a report on a container's memory about remote pages.
func pushReport(fill memory.FillReport) migration.Push {
	return migration.Push{
		RemotePages: fill.RemotePages, LeftPages: fill.RemoteLeft, LostPages: fill.LostPages,
		Faults:             fill.FetchedPages,
		FaultMedianSeconds: fill.FetchMedianSeconds, FaultP99Seconds: fill.FetchP99Seconds,
		FaultMaximumSeconds: fill.FetchMaximumSeconds, WaitedSeconds: fill.WaitedSeconds,
	}
}
