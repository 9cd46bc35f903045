package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// CountedAgain is the result of a client that reconnects when its connection ends.
type CountedAgain struct {
	Answers     int64
	Connections int64
	Refused     int64 // attempts to connect
	Silent      int64 // connections that neither answered nor ended within the limit
	Errors      int64 // answers that are no number
	Lost        int64 // increments that were answered and later missing
	Doubled     int64 // increments without a request
	LongestGap  time.Duration
}

// RedisAgain increments one key of a Redis server, one request after the other, and reconnects when its
// connection ends, as clients of a restarted server do. An increment that was requested and not answered
// may have been applied.
type RedisAgain struct {
	dial    func(ctx context.Context) (net.Conn, error)
	silence time.Duration

	mu      sync.Mutex
	counted CountedAgain
	last    int64 // the last answer
	asked   int64 // since the last answer
	lastAt  time.Time
	done    chan struct{}
}

// NewRedisAgain makes a client. It gives up a connection that is silent for so long.
func NewRedisAgain(dial func(ctx context.Context) (net.Conn, error), silence time.Duration) *RedisAgain {
	return &RedisAgain{dial: dial, silence: silence, done: make(chan struct{})}
}

// Start counts until ctx ends.
func (c *RedisAgain) Start(ctx context.Context) {
	go func() {
		defer close(c.done)
		for ctx.Err() == nil {
			c.connect(ctx)
		}
	}()
}

// Wait returns the result, when the context given to Start has ended.
func (c *RedisAgain) Wait() CountedAgain {
	<-c.done
	return c.Seen()
}

// Seen returns the result so far.
func (c *RedisAgain) Seen() CountedAgain {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted
}

func (c *RedisAgain) connect(ctx context.Context) {
	const pause = 5 * time.Millisecond
	conn, err := c.dial(ctx)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			c.count(func(s *CountedAgain) { s.Refused++ })
		}
		time.Sleep(pause)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	c.count(func(s *CountedAgain) { s.Connections++ })
	for reader := bufio.NewReader(conn); ctx.Err() == nil; time.Sleep(pause) {
		if err := c.ask(ctx, conn, reader); err != nil {
			return
		}
	}
}

func (c *RedisAgain) ask(ctx context.Context, conn net.Conn, reader *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(c.silence)); err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	c.mu.Lock()
	c.asked++
	c.mu.Unlock()
	if _, err := io.WriteString(conn, "*2\r\n$4\r\nINCR\r\n$6\r\nvisits\r\n"); err != nil {
		return err
	}
	line, err := reader.ReadString('\n')
	if err != nil {
		var timeout net.Error
		if ctx.Err() == nil && errors.As(err, &timeout) && timeout.Timeout() {
			c.count(func(s *CountedAgain) { s.Silent++ })
		}
		return err
	}
	return c.answer(line)
}

func (c *RedisAgain) answer(line string) error {
	value, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(line, ":"), "\r\n"), 10, 64)
	c.count(func(s *CountedAgain) {
		now := time.Now()
		if !c.lastAt.IsZero() {
			s.LongestGap = max(s.LongestGap, now.Sub(c.lastAt))
		}
		c.lastAt = now
		switch {
		case err != nil: // -LOADING, for example
			s.Errors++
			return
		case value <= c.last:
			s.Lost += c.last + 1 - value
		case value > c.last+c.asked:
			s.Doubled += value - c.last - c.asked
		}
		s.Answers++
		c.last, c.asked = value, 0
	})
	if err != nil {
		return fmt.Errorf("answer %.40q: %w", line, err)
	}
	return nil
}

func (c *RedisAgain) count(change func(*CountedAgain)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.counted)
}
