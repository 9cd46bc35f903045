// Package workload holds clients that measure a container's service while the container moves, and code
// that the moved programs share.
//
// A client checks every answer and keeps one connection for its whole life; it knows no migration and no
// engine.
package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Counted is the result of a counting client.
type Counted struct {
	Requests       int64   `json:"requests"`
	Errors         int64   `json:"errors"`
	Lost           int64   `json:"lost"`    // increments that were answered and later missing
	Doubled        int64   `json:"doubled"` // increments that were applied more than once
	SameConnection bool    `json:"same_connection"`
	LongestGap     float64 `json:"longest_gap_seconds"`
}

// RedisCounter increments one key of a Redis server over one TCP connection, at a steady rate, and checks
// that each answer is exactly one more than the last. It never reconnects: a broken connection is an error.
type RedisCounter struct {
	conn   net.Conn
	reader *bufio.Reader

	mu       sync.Mutex
	counted  Counted
	last     int64
	lastAt   time.Time
	gap      time.Duration // longest since the last call of Gap
	finished chan struct{}
	failure  error
}

// NewRedisCounter uses an established connection.
func NewRedisCounter(conn net.Conn) *RedisCounter {
	return &RedisCounter{conn: conn, reader: bufio.NewReaderSize(conn, 64<<10), finished: make(chan struct{})}
}

// valueBytes is the size of each value of a filled Redis.
const valueBytes = 64 << 10

// filled calls do for each key and value of a Redis that is filled with so many bytes. The values are
// incompressible.
func filled(bytes int, do func(key string, value []byte) error) error {
	source := rand.NewChaCha8([32]byte{1})
	value := make([]byte, valueBytes)
	for i := range bytes / valueBytes {
		if _, err := source.Read(value); err != nil {
			return err
		}
		if err := do("fill:"+strconv.Itoa(i), value); err != nil {
			return err
		}
	}
	return nil
}

// Fill stores the given number of bytes of incompressible data, in values of 64 KiB, before the counting
// begins.
func (c *RedisCounter) Fill(bytes int) error {
	return filled(bytes, func(key string, value []byte) error {
		if _, err := fmt.Fprintf(c.conn, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key,
			len(value), value); err != nil {
			return fmt.Errorf("fill redis: %w", err)
		}
		if line, err := c.reader.ReadString('\n'); err != nil || line != "+OK\r\n" {
			return fmt.Errorf("fill redis: answer %q: %w", line, err)
		}
		return nil
	})
}

// Verify reads everything that Fill has stored, and fails if it has changed. The counting pauses meanwhile.
func (c *RedisCounter) Verify(bytes int) error {
	answer := make([]byte, valueBytes+len("\r\n"))
	return filled(bytes, func(key string, value []byte) error {
		if _, err := fmt.Fprintf(c.conn, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key); err != nil {
			return fmt.Errorf("verify redis: %w", err)
		}
		line, err := c.reader.ReadString('\n')
		if err != nil || line != fmt.Sprintf("$%d\r\n", len(value)) {
			return errors.Join(fmt.Errorf("verify redis: of %s the answer is %q", key, line), err)
		}
		if _, err := io.ReadFull(c.reader, answer); err != nil {
			return fmt.Errorf("verify redis: %w", err)
		}
		if !slices.Equal(answer[:len(value)], value) {
			return fmt.Errorf("verify redis: %s is not what was stored", key)
		}
		return nil
	})
}

// Start counts at the given rate until ctx ends or the connection fails. It sends requests by the clock and
// does not wait for answers, so that several are under way when the server is frozen, as with many users.
func (c *RedisCounter) Start(ctx context.Context, perSecond int) {
	c.lastAt = time.Now()
	c.counted.SameConnection = true
	sent := make(chan struct{}, 1<<16)
	go c.send(ctx, perSecond, sent)
	go c.receive(sent)
}

func (c *RedisCounter) send(ctx context.Context, perSecond int, sent chan<- struct{}) {
	defer close(sent)
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := c.conn.Write([]byte("*2\r\n$4\r\nINCR\r\n$6\r\nvisits\r\n")); err != nil {
			c.fail(err)
			return
		}
		sent <- struct{}{}
	}
}

func (c *RedisCounter) receive(sent <-chan struct{}) {
	defer close(c.finished)
	for range sent {
		line, err := c.reader.ReadString('\n')
		if err != nil {
			c.fail(err)
			return
		}
		c.answer(line)
	}
}

func (c *RedisCounter) answer(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.counted.Requests > 0 {
		c.gap = max(c.gap, now.Sub(c.lastAt))
	}
	c.lastAt = now
	c.counted.Requests++
	value, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(line, ":"), "\r\n"), 10, 64)
	switch {
	case err != nil:
		c.counted.Errors++
	case c.last != 0 && value <= c.last:
		c.counted.Lost += c.last + 1 - value
	case c.last != 0 && value > c.last+1:
		c.counted.Doubled += value - c.last - 1
	}
	c.last = value
}

func (c *RedisCounter) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counted.SameConnection = false
	c.counted.Errors++
	c.failure = errors.Join(c.failure, err)
}

// Answers returns the number of answered requests so far.
func (c *RedisCounter) Answers() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted.Requests
}

// Seen returns the result so far.
func (c *RedisCounter) Seen() Counted {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted
}

// Gap returns the longest time between two answers since the last call of Gap.
func (c *RedisCounter) Gap() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	gap := c.gap
	if c.counted.Requests > 0 {
		gap = max(gap, time.Since(c.lastAt)-time.Second)
	}
	c.gap = 0
	return gap
}

// Result waits until every request is answered, for at most the given time, and returns the result. The
// context given to Start must have ended.
func (c *RedisCounter) Result(wait time.Duration) (Counted, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return Counted{}, err
	}
	<-c.finished
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted, c.failure
}
