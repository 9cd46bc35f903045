package moves

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/lab/workload"
)

// fill connects to a Redis that may still be starting, and stores the data of the workload.
func fill(ctx context.Context, b *testbed.Bed, machine, address string) (net.Conn, *workload.RedisCounter,
	error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		conn, err := b.Lab.Dial(ctx, machine, "tcp", address)
		if err == nil {
			counter := workload.NewRedisCounter(conn)
			if err := counter.Fill(RedisDataBytes); err != nil {
				return nil, nil, errors.Join(err, conn.Close())
			}
			return conn, counter, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%s does not answer: %w", address, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// RedisClient counts in a Redis from its own machine, over one connection, as long as the Redis's container
// exists.
type RedisClient struct {
	bed     *testbed.Bed
	machine string
	conn    net.Conn
	counter *workload.RedisCounter
	cancel  context.CancelFunc
}

// NewRedisClient makes the machine, stores the data of the workload, and starts counting.
func NewRedisClient(ctx context.Context, b *testbed.Bed, machine, address string) (*RedisClient, error) {
	if err := b.Lab.Client(machine, testbed.Nodes[0], lab.Link{}); err != nil {
		return nil, err
	}
	conn, counter, err := fill(ctx, b, machine, address)
	if err != nil {
		return nil, errors.Join(err, b.Lab.RemoveClient(machine))
	}
	counting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	client := &RedisClient{bed: b, machine: machine, conn: conn, counter: counter, cancel: cancel}
	counter.Start(counting, redisRate)
	return client, client.Count(ctx)
}

// Count waits until the client has had further answers for a quarter of a second.
func (c *RedisClient) Count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for until := c.counter.Answers() + redisRate/4; c.counter.Answers() < until; {
		if err := testbed.Pause(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("the client gets no answers any more: %w", err)
		}
	}
	return nil
}

// Forget discards earlier results.
func (c *RedisClient) Forget() {
	if c != nil {
		c.counter.Gap()
	}
}

// Waited returns how long the client had no answer since forget, even beyond the downtime.
func (c *RedisClient) Waited(ctx context.Context, downtime float64) ([]results.Measurement, error) {
	if c == nil {
		return nil, nil
	}
	if err := c.Count(ctx); err != nil {
		return nil, err
	}
	gap := c.counter.Gap().Seconds()
	return []results.Measurement{{results.Gap, gap}, {results.Beyond, gap - downtime}}, nil
}

// End also makes sure that nothing was lost: a quick switchover that loses requests does not count.
func (c *RedisClient) End() error {
	if c == nil {
		return nil
	}
	c.cancel()
	seen, err := c.counter.Result(10 * time.Second)
	if err == nil && seen.Errors+seen.Lost+seen.Doubled > 0 {
		err = fmt.Errorf("the client saw %d errors, %d lost and %d doubled counts", seen.Errors, seen.Lost,
			seen.Doubled)
	}
	return errors.Join(err, c.conn.Close(), c.bed.Lab.RemoveClient(c.machine))
}

const (
	// RedisPort is where Redis listens.
	RedisPort = 6379
	// RedisDataBytes is the size of the data in Redis.
	RedisDataBytes = 64 << 20
	redisRate      = 200 // requests a second of its client
)
