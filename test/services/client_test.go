package services

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/lab/workload"
)

const (
	// sessions is the number of connections that a client keeps.
	sessions = 4
	// askTimeout is how long an answer may take.
	askTimeout = 2 * time.Minute
	// newClients is the interval at which a new client connects, asks and leaves.
	newClients = 250 * time.Millisecond
	// maxErrors ends a client: more errors would add nothing.
	maxErrors = 20
)

// client uses a service all the time: some sessions keep their connections, and new clients connect again
// and again. It counts the service's acknowledgements.
type client struct {
	of    service
	to    address
	work  sync.WaitGroup
	end   context.CancelFunc
	lines []*line

	mu     sync.Mutex
	errors []error
}

// line is the record of one session, over any number of connections.
type line struct {
	number  int
	answers workload.Answers
	mu      sync.Mutex
	asked   int64 // acknowledged
	lost    int64 // known to be lost
}

// start starts a client of a service that answers.
func start(ctx context.Context, of service, to address) *client {
	c := &client{of: of, to: to}
	ctx, c.end = context.WithCancel(ctx)
	count := sessions
	if of.single {
		count = 1
	}
	for number := range count {
		c.lines = append(c.lines, &line{number: number + 1})
	}
	for _, l := range c.lines {
		c.work.Go(func() { c.keep(ctx, l) })
	}
	if !of.single {
		visitor := &line{number: sessions + 1}
		c.lines = append(c.lines, visitor)
		c.work.Go(func() { c.visit(ctx, visitor) })
	}
	return c
}

// keep asks over one connection. After an error, which it counts, it reconnects.
func (c *client) keep(ctx context.Context, l *line) {
	every := c.of.every
	if every == 0 {
		every = 20 * time.Millisecond
	}
	for ctx.Err() == nil && c.count() < maxErrors {
		s, err := c.connect(ctx, l)
		for err == nil {
			if err = c.ask(ctx, s, l); err == nil && !pause(ctx, world.slowness()*every) {
				err = ctx.Err()
			}
		}
		if s != nil {
			_ = s.Close() // only the answers count
		}
		c.failed(ctx, l, err)
	}
}

// visit reconnects each time.
func (c *client) visit(ctx context.Context, l *line) {
	for c.count() < maxErrors && pause(ctx, world.slowness()*newClients) {
		s, err := c.connect(ctx, l)
		if err == nil {
			err = c.ask(ctx, s, l)
			_ = s.Close()
		}
		c.failed(ctx, l, err)
	}
}

func (c *client) connect(ctx context.Context, l *line) (session, error) {
	ctx, cancel := context.WithTimeout(ctx, limit(askTimeout))
	defer cancel()
	s, err := c.of.connect(ctx, c.to, l.number)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return s, nil
}

func (c *client) ask(ctx context.Context, s session, l *line) error {
	ctx, cancel := context.WithTimeout(ctx, limit(askTimeout))
	defer cancel()
	began := time.Now()
	if err := s.Ask(ctx, l.acknowledged()+1); err != nil {
		return fmt.Errorf("ask for the %dth time: %w", l.acknowledged()+1, err)
	}
	l.answers.Add(began)
	l.mu.Lock()
	l.asked++
	l.mu.Unlock()
	return nil
}

func (l *line) acknowledged() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// failed counts an error, unless the client was told to end.
func (c *client) failed(ctx context.Context, l *line, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.errors = append(c.errors, fmt.Errorf("session %d: %w", l.number, err))
	c.mu.Unlock()
	pause(ctx, world.slowness()*newClients)
}

func (c *client) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.errors)
}

// takeErrors returns the errors since its last call.
func (c *client) takeErrors() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.errors
	c.errors = nil
	return taken
}

// gap returns the longest time that any session waited for an answer since then; new clients are rare, so
// only the time of their answers counts.
func (c *client) gap(since time.Time) time.Duration {
	longest := time.Duration(0)
	for _, l := range c.lines {
		if l.number > sessions {
			for _, one := range l.answers.Since(since) {
				longest = max(longest, one.At.Sub(one.Asked))
			}
			continue
		}
		longest = max(longest, l.answers.Gap(since))
	}
	return longest
}

// answered waits until each session has had some more answers.
func (c *client) answered(ctx context.Context) error {
	const more = 3
	before := make([]int, len(c.lines))
	for i, l := range c.lines {
		before[i] = l.answers.Count()
	}
	ctx, cancel := context.WithTimeout(ctx, limit(askTimeout))
	defer cancel()
	for i, l := range c.lines {
		for l.answers.Count() < before[i]+more {
			if c.count() >= maxErrors {
				return fmt.Errorf("the client has given up after %d errors", maxErrors)
			}
			if !pause(ctx, 10*time.Millisecond) {
				return fmt.Errorf("session %d gets no answers any more", l.number)
			}
		}
	}
	return nil
}

// newlyLost counts acknowledged data that is lost, and was not known to be lost.
func (c *client) newlyLost(ctx context.Context) (newly int64, err error) {
	if c.of.lost == nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit(askTimeout))
	defer cancel()
	for _, l := range c.lines {
		lost, err := c.of.lost(ctx, c.to, l.number, l.acknowledged())
		if err != nil {
			return newly, fmt.Errorf("look for what session %d was promised: %w", l.number, err)
		}
		newly += lost - l.lost
		l.lost = lost
	}
	return newly, nil
}

func (c *client) stop() {
	c.end()
	c.work.Wait()
}

// limit returns the limit for an operation with this limit in a lab. On slower machines, the maximum grows
// less than the usual time.
func limit(inLab time.Duration) time.Duration { return inLab * min(world.slowness(), 4) }

// pause waits, and reports whether the time was over before the context was.
func pause(ctx context.Context, how time.Duration) bool {
	timer := time.NewTimer(how)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
