package services

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/lab/workload"
)

// App is a workload of a study: a service, and a client that measures what its user sees.
type App struct {
	Name    string
	Image   string
	Args    []string
	flags   []string // of `godwit run`
	Network string
	Port    int
	Volume  string // directory of its persistent data, if its processes start anew
	// Connect makes a client of the service, which may still be starting. The first client of a container
	// stores its data.
	Connect func(ctx context.Context, dial Dialer, first bool) (Client, error)
}

// Dialer connects to the service, wherever it is.
type Dialer func(ctx context.Context) (net.Conn, error)

// Client sends requests all the time.
type Client interface {
	Answers() *workload.Answers
	// Err returns the client's error: a wrong answer, or none.
	Err() error
	// Check verifies that all data is there.
	Check(ctx context.Context) error
	Close() error
}

const (
	// Patience is how long a service may take to start and to load its data, or to answer again.
	Patience = 5 * time.Minute
	// Settled is how many answers a client must get before and after a move.
	Settled = 5
)

// patient retries until the service answers.
func (d Dialer) patient(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		conn, err := d(ctx)
		if err == nil {
			return conn, nil
		}
		if pauseErr := testbed.Pause(ctx, 20*time.Millisecond); pauseErr != nil {
			return nil, fmt.Errorf("the service does not answer: %w", err)
		}
	}
}

// AwaitAnswers waits until a client has had so many further answers.
func AwaitAnswers(ctx context.Context, c Client) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for until := c.Answers().Count() + Settled; c.Answers().Count() < until; {
		if err := c.Err(); err != nil {
			return fmt.Errorf("what the client saw: %w", err)
		}
		if err := testbed.Pause(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("the client gets no answers any more: %w", err)
		}
	}
	return nil
}

// RunFlags returns the flags of the container's command.
func (a App) RunFlags() []string {
	if a.Volume == "" {
		return a.flags
	}
	return append([]string{"--volume", Volume + ":" + a.Volume}, a.flags...)
}
