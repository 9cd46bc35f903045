package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Clock asks a web server for a number that only grows, over a new connection each time, like a person who
// reloads a page again and again.
type Clock struct {
	dial    func(ctx context.Context) (net.Conn, error)
	path    string
	answers Answers
	end     context.CancelFunc
	work    sync.WaitGroup

	asking sync.Mutex // one at a time: two answers may come in any order

	mu     sync.Mutex
	last   int64
	failed error
}

// NewClock makes a client.
func NewClock(dial func(ctx context.Context) (net.Conn, error), path string) *Clock {
	return &Clock{dial: dial, path: path, end: func() {}}
}

// Start asks at this interval, until the client is closed.
func (c *Clock) Start(ctx context.Context, every time.Duration) {
	ctx, c.end = context.WithCancel(ctx)
	c.work.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			asked := time.Now()
			if err := c.ask(ctx); err == nil {
				c.answers.Add(asked)
			} else if ctx.Err() == nil {
				c.mu.Lock()
				c.failed = err
				c.mu.Unlock()
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
}

func (c *Clock) ask(ctx context.Context) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := fmt.Fprintf(conn, "GET /%s HTTP/1.0\r\n\r\n", c.path); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64))
	if err != nil {
		return err
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %.40q: %w", response.Status, text, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now < c.last {
		return fmt.Errorf("it was %d and is %d", c.last, now)
	}
	c.last = now
	return nil
}

// Answers returns the correct answers.
func (c *Clock) Answers() *Answers { return &c.answers }

// Err returns the first error.
func (c *Clock) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// Check asks once more.
func (c *Clock) Check(ctx context.Context) error { return errors.Join(c.Err(), c.ask(ctx)) }

// Close ends the client and returns its error.
func (c *Clock) Close() error {
	c.end()
	c.work.Wait()
	return c.Err()
}
