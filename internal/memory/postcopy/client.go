package postcopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
)

const (
	// statusInterval is the interval of reports to the source.
	statusInterval = time.Second
	// patience is how long the filler of the memory may take to report that nothing is missing, once all
	// listed pages have come. It lists no more than a map can have; the next connection to it lists the
	// rest.
	patience = 10 * time.Second
)

// ClientConfig configures a Client.
type ClientConfig struct {
	// Pages is the connection to the filler of the container's memory; nil: nothing is missing any more,
	// and only the source has to be told. Its Next is called again after its context ended, and must not
	// lose a page in that case.
	Pages memory.RemotePages
	// Before is what the target had of remote pages, for applying changes; nil: pages must come whole.
	Before Before
	// Key is that of the migration's digests, for Before.
	Key pipeline.Key
	// Fill returns the progress; nil, or an error: the client's own knowledge is reported.
	Fill func(context.Context) (memory.FillReport, error)
	// Silence is how long nothing may come from the source; 0: any time. Meanwhile it is asked for signs of
	// life.
	Silence time.Duration
	// Every is the interval of reports to the source; 0: one second.
	Every time.Duration
}

// Client passes remote pages to the filler of a container's memory. It belongs to one connection to the
// filler; a new connection needs a new client.
type Client struct {
	config ClientConfig
	tally  tally
	turn   turn // whose it is to put pages

	mu       sync.Mutex
	layout   *layout // of what was missing at the beginning
	missing  set     // what is missing now
	left     int     // of missing
	expected set     // pages that may come on the present connections
	asked    set     // pages for which a process waits
	running  bool
	finished bool // nothing has to come any more
	whole    bool // changes did not match: pages must come whole
}

// NewClient returns a client.
func NewClient(config ClientConfig) (*Client, error) {
	if config.Every <= 0 {
		config.Every = statusInterval
	}
	c := &Client{config: config, finished: config.Pages == nil}
	var maps []memory.TaskMap
	if config.Pages != nil {
		maps = config.Pages.Missing()
	}
	l, err := newLayout(maps)
	if err != nil {
		return nil, fmt.Errorf("%w: list what is missing: %w", ErrTarget, err)
	}
	c.layout, c.missing, c.asked, c.left = l, newSet(l.pages), newSet(l.pages), l.pages
	c.missing.add(0, l.pages)
	c.tally.update(func(s *Stats) { s.LeftPages = int64(l.pages) })
	return c, nil
}

// Stats returns the counts so far. It may be called at any time.
func (c *Client) Stats() Stats { return c.tally.snapshot() }

// Run fetches pages over two connections, which it owns and closes when it returns. It returns nil when
// everything is here and the source knows that. Otherwise it can be called again with new connections;
// after ErrTarget a new client is needed, and after ErrPeer that is useless.
func (c *Client) Run(ctx context.Context, urgent, push Session) error {
	r, err := c.begin(urgent, push)
	if err != nil {
		hangUp(urgent, push, nil)
		return err
	}
	defer c.stop()
	err = together(ctx, urgent, push, r.wait, r.ask, r.tell, r.hearUrgent, r.hearPush, r.watch)
	if errors.Is(err, ErrStale) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.whole = true
	}
	return err
}

// begin computes what is expected from new connections, and requests again the pages for which processes
// wait.
func (c *Client) begin(urgent, push Session) (*running, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return nil, errors.New("remote pages are being fetched over other connections")
	}
	c.running = true
	c.tally.connected()
	r := &running{
		Client: c, urgent: urgent, push: push, maps: c.layout.mapsWithin(c.missing, memory.MaxAreas),
		wake: make(chan struct{}, 1), over: make(chan struct{}), ended: make(chan struct{}),
	}
	r.open.Store(2)
	r.pulse.began = time.Now()
	if c.config.Before != nil && !c.whole {
		r.name = takesChanges
	}
	var err error
	if c.expected, err = c.layout.choose(r.maps); err != nil {
		return nil, err
	}
	c.asked.intersect(c.missing)
	for n := c.asked.next(0, c.layout.pages); n < c.layout.pages; n = c.asked.next(n+1, c.layout.pages) {
		r.faults = append(r.faults, n)
	}
	r.wake <- struct{}{}
	return r, nil
}

func (c *Client) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
}

// running is a Client with connections.
type running struct {
	*Client
	urgent, push Session
	maps         []memory.TaskMap // missing at its beginning
	name         string           // of the section that reports this
	faults       []int            // to be requested; guarded by the client's lock
	wake         chan struct{}    // there are some
	over         chan struct{}    // closed when nothing has to come any more
	ended        chan struct{}    // closed when the source has ended both connections
	open         atomic.Int32     // how many it has not
	pulse        pulse

	// Guarded by the client's lock.
	stale  set   // of missing: did not come right; nil: none
	stales int   // of them
	why    error // one of them did not
}

// watch gives up a silent source, even while the source is told that everything is here.
func (r *running) watch(ctx context.Context) error {
	if err := r.pulse.watch(ctx, r.over, r.urgent, r.config.Silence); err != nil || r.config.Silence <= 0 {
		return err
	}
	timer := time.NewTimer(r.config.Silence)
	defer timer.Stop()
	select {
	case <-r.ended:
	case <-ctx.Done():
	case <-timer.C:
		return fmt.Errorf("%w: it does not confirm that all pages have arrived", ErrSilent)
	}
	return nil
}

// wait waits for processes that wait for pages.
func (r *running) wait(ctx context.Context) error {
	for r.config.Pages != nil {
		fault, err := r.config.Pages.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if ctx.Err() != nil && err != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: wait for requested pages: %w", ErrTarget, err)
		}
		if err := r.faulted(fault); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.finished = true
	r.mu.Unlock()
	close(r.over)
	return nil
}

func (r *running) faulted(w memory.RemoteFault) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.layout.number(w.Task, w.Address)
	if !ok {
		return fmt.Errorf("%w: it asks for a page that is not remote: %#x of task %d", ErrTarget, w.Address,
			w.Task)
	}
	if !r.missing.has(n) || r.asked.has(n) {
		return nil // it has just come, or was requested
	}
	if r.stale != nil && r.stale.has(n) {
		return r.why
	}
	r.asked.add(n, n+1)
	r.faults = append(r.faults, n)
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return nil
}

// ask requests pages from the source, for all waiting processes at once.
func (r *running) ask(ctx context.Context) error {
	var data []byte
	for {
		select {
		case <-r.wake:
		case <-r.over:
			return during("end the urgent connection", r.urgent.Finish())
		case <-ctx.Done():
			return nil
		}
		for {
			if data = r.nextFaults(data[:0]); len(data) == 0 {
				break
			}
			if err := section(r.urgent, kindFault, data); err != nil {
				return during("ask for pages", err)
			}
			if err := r.urgent.Push(); err != nil {
				return during("ask for pages", err)
			}
		}
	}
}

// nextFaults takes the remote faults for one section.
func (r *running) nextFaults(data []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := 0
	for len(r.faults) > 0 && len(data) < maxFaults*faultBytes {
		n := r.faults[0]
		r.faults = r.faults[1:]
		if !r.missing.has(n) {
			continue // it has come meanwhile
		}
		task, address, _ := r.layout.place(n)
		data = appendFault(data, memory.RemoteFault{Task: task, Address: address})
		count++
	}
	r.tally.update(func(s *Stats) { s.Faults += int64(count) })
	return data
}

// tell tells the source what is missing, then the progress, and finally that everything is here.
func (r *running) tell(ctx context.Context) error {
	if err := r.tellMissing(); err != nil {
		return during("tell the source what is missing", err)
	}
	ticker := time.NewTicker(r.config.Every)
	defer ticker.Stop()
	latest := time.Now() // when there was something missing
	for {
		why := r.onlyStale()
		select {
		case <-ticker.C:
			if why != nil { // and nobody has said meanwhile that it is not needed
				return why
			}
			if r.tally.snapshot().LeftPages > 0 {
				latest = time.Now()
			} else if time.Since(latest) > patience {
				return fmt.Errorf("%w: all missing pages have arrived, but it does not report that it "+
					"is complete", ErrTarget)
			}
			if err := r.status(ctx, kindStatus); err != nil {
				return during("tell the source how far it is", err)
			}
		case <-r.over:
			err := r.status(ctx, kindComplete)
			if err == nil {
				err = r.push.Finish()
			}
			return during("tell the source that all is here", err)
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *running) tellMissing() error {
	if err := r.push.Begin(kindMissing, r.name); err != nil {
		return err
	}
	if err := memory.EncodeMap(sessionWriter{r.push}, r.maps); err != nil {
		return err
	}
	r.maps = nil
	if err := r.push.End(); err != nil {
		return err
	}
	return r.push.Push()
}

func (r *running) status(ctx context.Context, kind string) error {
	data, err := encodeStatus(r.report(ctx))
	if err != nil {
		return err
	}
	if err := section(r.push, kind, data); err != nil {
		return err
	}
	return r.push.Push()
}

func (r *running) report(ctx context.Context) memory.FillReport {
	if r.config.Fill != nil {
		if report, err := r.config.Fill(ctx); err == nil {
			return report
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	report := memory.FillReport{
		State: memory.Filling, RemotePages: int64(r.layout.pages), RemoteLeft: int64(r.left),
	}
	if r.finished {
		report.State, report.RemoteLeft = memory.Filled, 0
	}
	return report
}

// sessionWriter hides all but Write.
type sessionWriter struct{ s Session }

// Write implements io.Writer.
func (w sessionWriter) Write(p []byte) (int, error) { return w.s.Write(p) }

// hearUrgent receives requested pages.
func (r *running) hearUrgent(context.Context) error { return r.hear(r.urgent, true) }

// hearPush receives all other pages.
func (r *running) hearPush(context.Context) error { return r.hear(r.push, false) }

func (r *running) hear(s Session, urgent bool) error {
	in := inlet{running: r, urgent: urgent}
	for {
		next, err := s.Next()
		if errors.Is(err, io.EOF) {
			return r.end()
		}
		r.pulse.beat()
		if err == nil {
			err = in.take(next)
		}
		if err != nil {
			return during("receive pages", err)
		}
	}
}

// end reports whether the source may end a connection.
func (r *running) end() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.finished {
		return peerError("it ends the stream, and %d pages are missing", r.left)
	}
	if r.open.Add(-1) == 0 {
		close(r.ended)
	}
	return nil
}
