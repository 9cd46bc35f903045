package bench

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

// redisClient counts in a Redis from its own machine, over one connection, as long as the Redis's container
// exists.
type redisClient struct {
	bed     *testbed.Bed
	machine string
	conn    net.Conn
	counter *workload.RedisCounter
	cancel  context.CancelFunc
}

// newRedisClient makes the machine, stores the data of the workload, and starts counting.
func newRedisClient(ctx context.Context, b *testbed.Bed, machine, address string) (*redisClient, error) {
	if err := b.Lab.Client(machine, testbed.Nodes[0], lab.Link{}); err != nil {
		return nil, err
	}
	conn, counter, err := fill(ctx, b, machine, address)
	if err != nil {
		return nil, errors.Join(err, b.Lab.RemoveClient(machine))
	}
	counting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	client := &redisClient{bed: b, machine: machine, conn: conn, counter: counter, cancel: cancel}
	counter.Start(counting, redisRate)
	return client, client.count(ctx)
}

// count waits until the client has had further answers for a quarter of a second.
func (c *redisClient) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for until := c.counter.Answers() + redisRate/4; c.counter.Answers() < until; {
		if err := testbed.Pause(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("the client gets no answers any more: %w", err)
		}
	}
	return nil
}

// forget discards earlier results.
func (c *redisClient) forget() {
	if c != nil {
		c.counter.Gap()
	}
}

// waited returns how long the client had no answer since forget, even beyond the downtime.
func (c *redisClient) waited(ctx context.Context, downtime float64) ([]results.Measurement, error) {
	if c == nil {
		return nil, nil
	}
	if err := c.count(ctx); err != nil {
		return nil, err
	}
	gap := c.counter.Gap().Seconds()
	return []results.Measurement{{results.Gap, gap}, {results.Beyond, gap - downtime}}, nil
}

// end also makes sure that nothing was lost: a quick switchover that loses requests does not count.
func (c *redisClient) end() error {
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
