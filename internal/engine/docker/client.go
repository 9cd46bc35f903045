package docker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/moby/moby/client"
)

// connection is how Docker's API is reached.
type connection struct {
	// negotiates finds out which version of the API Docker speaks, and has a lock meanwhile for which its
	// callers wait whatever becomes of their contexts. So it is used by one call at a time until it knows: by
	// who is in turn.
	negotiates *client.Client
	turn       chan struct{}
	knows      atomic.Bool
	// newest asks in the newest version, for who cannot wait any longer.
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

// api is Docker's API. If Docker does not tell its version in time, what is asked with ctx says why. Nobody
// keeps the turn for longer than a question may take: what is asked with ctx may go on for ever.
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
