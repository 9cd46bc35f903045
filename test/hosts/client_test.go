//go:build hosts

package hosts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/lab/hosts"
)

// client sends requests to a web server on one connection, all the time.
type client struct {
	end  context.CancelFunc
	over chan struct{}
	err  error         // then: why it could not continue
	gap  time.Duration // then: the longest time between two answers
}

// patience is how long an answer may take. An emulated machine is slow, but a lost connection stays lost.
const patience = 5 * time.Minute

// startClient returns when the first answer has come.
func startClient(t *testing.T, address string) *client {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	c := &client{end: end, over: make(chan struct{})}
	first := make(chan error, 1)
	go func() {
		defer close(c.over)
		c.err = c.ask(ctx, address, first)
	}()
	t.Cleanup(c.stop)
	if err := <-first; err != nil {
		t.Fatalf("%s does not answer: %v", address, err)
	}
	return c
}

func (c *client) stop() {
	c.end()
	<-c.over
}

func (c *client) ask(ctx context.Context, address string, first chan<- error) error {
	var last time.Time
	err := func() error {
		conn, err := hosts.Dial(ctx, "tcp4", address)
		for began := time.Now(); errors.Is(err, unix.ECONNREFUSED) && time.Since(began) < patience; {
			time.Sleep(100 * time.Millisecond) // the server may still be starting
			conn, err = hosts.Dial(ctx, "tcp4", address)
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		// NGINX ends a connection after 1000 answers
		for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
				return err
			}
			answer, err := http.ReadResponse(in, nil)
			if err != nil {
				return err
			}
			if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %w", answer.Status, err)
			}
			if now := time.Now(); last.IsZero() {
				first <- nil
				last = now
			} else {
				c.gap, last = max(c.gap, now.Sub(last)), now
			}
		}
		return nil
	}()
	if last.IsZero() {
		first <- err
	}
	return err
}
