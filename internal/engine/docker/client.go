package docker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/moby/moby/client"
)

// connection is a connection to Docker's API.
type connection struct {
	// negotiates finds the API version of Docker. Meanwhile it holds a lock for which its callers wait,
	// even if their contexts end. So until the version is known, only the caller that has the turn uses
	// this client.
	negotiates *client.Client
	turn       chan struct{}
	knows      atomic.Bool
	// newest uses the newest API version, for callers that cannot wait any longer.
	newest *client.Client
}

func connect(socket string) (*connection, error) {
	negotiates, err := client.New(client.WithHost("unix://" + socket))
	if err != nil {
		return nil, fmt.Errorf("client of Docker: %w", err)
	}
	newest, err := client.New(client.WithHost("unix://"+socket), client.WithAPIVersion(client.MaxAPIVersion))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client of Docker: %w", err), negotiates.Close())
	}
	return &connection{negotiates: negotiates, newest: newest, turn: make(chan struct{}, 1)}, nil
}

// api returns a client for Docker's API. If Docker does not report its version in time, a call with ctx
// fails with the reason. Nobody keeps the turn for longer than a query may take, because calls with ctx may
// take for ever.
func (c *connection) api(ctx context.Context) *client.Client {
	if c.knows.Load() {
		return c.negotiates
	}
	limited, cancel := asking(ctx)
	defer cancel()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-limited.Done():
		return c.newest
	}
	if c.knows.Load() {
		return c.negotiates
	}
	if _, err := c.negotiates.Ping(limited, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return c.newest
	}
	c.knows.Store(true)
	return c.negotiates
}

func (c *connection) close() error { return errors.Join(c.negotiates.Close(), c.newest.Close()) }
