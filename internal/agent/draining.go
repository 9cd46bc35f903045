package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/drain"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// draining is the way of the pages that stayed here, in the frozen processes, to the target: two
// connections, and what serves them. Connections break and are opened again; the rest stays.
type draining struct {
	mayPush chan struct{} // closed when the container runs at the target
	pushing sync.Once

	mu           sync.Mutex
	pages        stayed
	open         bool               // pages are
	server       *drain.Server      // nil: nothing has stayed here yet
	urgent, push *stream.Session    // nil: not open
	stop         context.CancelFunc // of what serves; nil: nothing does
	ended        chan error         // what serves has ended
	connections  int                // how often both were opened
	past         drainBytes         // over those that are closed
	late         int64              // pages that stayed here
	fill         memory.FillReport  // as the target said last
	heardAt      time.Time          // when that was
	began        time.Time          // about when the container was handed over
	over         time.Time          // the target has all
}

// drainBytes are what the two connections have carried from here, on the wire, and what that was
// before compression.
type drainBytes struct{ urgent, push, raw int64 }

// have takes what gives the pages, and since when that is needed.
func (d *draining) have(pages stayed, server *drain.Server, since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pages, d.open, d.server, d.began = pages, true, server, since
}

func (d *draining) made() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server != nil
}

// stays notes how many pages stay here.
func (d *draining) stays(pages int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.late = pages
}

// connected takes two new connections.
func (d *draining) connected(urgent, push *stream.Session) {
	d.disconnect() // what was open and not served yet
	d.mu.Lock()
	defer d.mu.Unlock()
	d.urgent, d.push = urgent, push
	d.connections++
}

// serve begins to serve the connections, until they break or the target has all.
func (d *draining) serve(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, d.stop = context.WithCancel(ctx)
	urgent, push := d.urgent, d.push
	d.ended = guard.Go(func() error { return d.server.Serve(ctx, urgent, push) })
}

// serving tells whether somebody serves the connections, or has and was not waited for.
func (d *draining) serving() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop != nil
}

// wait waits for the end of what serves. If ctx ends first, that ends too.
func (d *draining) wait(ctx context.Context) error {
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
func (d *draining) disconnect() {
	d.mu.Lock()
	stop, ended, urgent, push := d.stop, d.ended, d.urgent, d.push
	d.stop, d.ended, d.urgent, d.push = nil, nil, nil, nil
	d.past = d.past.plus(urgent, push)
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
func (d *draining) close() error {
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

func (b drainBytes) plus(urgent, push *stream.Session) drainBytes {
	if urgent != nil {
		counters := urgent.Counters()
		b.urgent, b.raw = b.urgent+int64(counters.SentWireBytes), b.raw+uncompressed(counters)
	}
	if push != nil {
		counters := push.Counters()
		b.push, b.raw = b.push+int64(counters.SentWireBytes), b.raw+uncompressed(counters)
	}
	return b
}

// heard takes what the target says of its container's memory.
func (d *draining) heard(fill memory.FillReport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fill, d.heardAt = fill, time.Now()
}

// begin lets pages leave for which nobody waits.
func (d *draining) begin() { d.pushing.Do(func() { close(d.mayPush) }) }

// healthy tells whether the target has taken pages not longer ago than that.
func (d *draining) healthy(limit time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop != nil && time.Since(d.heardAt) < limit
}

// errKilled says that the target had to end the container. What is here is whole, as it was when it
// was frozen.
var errKilled = errors.New("the container was killed there, because its memory could not be completed")

// killed tells whether the target says so.
func (d *draining) killed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fill.State != memory.FillLost {
		return nil
	}
	return errKilled
}

// incomplete tells whether the target's last word on its container's memory is that it misses some.
func (d *draining) incomplete() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if unfinished(d.fill) {
		return fmt.Errorf("it says that it has all, and that it misses %d of them", d.fill.LateLeft)
	}
	return nil
}

// bytes are what has been sent so far.
func (d *draining) bytes() drainBytes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past.plus(d.urgent, d.push)
}

// report tells how far it is.
func (d *draining) report() *migration.Drain {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil {
		return nil
	}
	stats := d.server.Stats()
	report := drainReport(d.fill)
	report.LatePages = max(d.late, report.LatePages)
	report.UrgentPages, report.PushedPages = int64(stats.UrgentPages), int64(stats.PushedPages)
	report.Connections, report.Spill = d.connections, d.pages.spill.now()
	if d.fill.State == "" {
		report.LeftPages = report.LatePages
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

// drainReport is what a report on a container's memory says of pages that came late.
func drainReport(fill memory.FillReport) migration.Drain {
	return migration.Drain{
		LatePages: fill.LatePages, LeftPages: fill.LateLeft, LostPages: fill.LostPages, Faults: fill.FetchedPages,
		FaultMedianSeconds: fill.FetchMedianSeconds, FaultP99Seconds: fill.FetchP99Seconds,
		FaultMaximumSeconds: fill.FetchMaximumSeconds, WaitedSeconds: fill.WaitedSeconds,
	}
}
