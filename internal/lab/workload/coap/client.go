// Package coap is a client of the CoAP server of Puliafito et al. (Sensors 2019): it changes some of the
// server's data once a second, sends a small request many times a second, and measures how long the answers
// take.
//
// It implements the necessary part of RFC 7252, and repeats requests without a timely answer, as every
// client of CoAP does.
package coap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/lab/workload"
)

// Port is the server's.
const Port = 5683

const (
	// patience is the time before a request is repeated, doubled each time (RFC 7252, section 4.8).
	patience = 2500 * time.Millisecond
	repeats  = 4
	// askEvery is the pause between two questions.
	askEvery = 50 * time.Millisecond
)

// Client is one user of the server.
type Client struct {
	conn    net.Conn
	answers workload.Answers
	end     context.CancelFunc
	work    sync.WaitGroup

	mu      sync.Mutex
	waiting map[uint32]chan []byte
	last    uint32 // token and id of the last request
	posts   int64  // answered posts
	asked   int64  // posts that may have been applied
	failed  error
}

// New uses a connection, which is closed with the client.
func New(conn net.Conn) *Client {
	c := &Client{conn: conn, waiting: map[uint32]chan []byte{}, end: func() {}}
	c.work.Go(c.listen)
	return c
}

// Start sends requests all the time, and changes so many kilobytes each second.
func (c *Client) Start(ctx context.Context, kilobytes int) {
	ctx, c.end = context.WithCancel(ctx)
	c.work.Go(func() { c.repeat(ctx, askEvery, c.ask) })
	c.work.Go(func() {
		c.repeat(ctx, time.Second,
			func(ctx context.Context) error { return c.Post(ctx, kilobytes) })
	})
}

// Answers returns the answers to the small requests.
func (c *Client) Answers() *workload.Answers { return &c.answers }

// Err returns the first error.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *Client) repeat(ctx context.Context, every time.Duration, do func(context.Context) error) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := do(ctx); err != nil {
			if ctx.Err() == nil {
				c.fail(err)
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = errors.Join(c.failed, err)
}

func (c *Client) ask(ctx context.Context) error {
	asked := time.Now()
	_, err := c.request(ctx, message{code: codeGET, path: "data"})
	if err == nil {
		c.answers.Add(asked)
	}
	return err
}

// Post changes so many kilobytes. The server must have counted each answered post.
func (c *Client) Post(ctx context.Context, kilobytes int) error {
	c.mu.Lock()
	c.asked++
	c.mu.Unlock()
	answer, err := c.request(ctx, message{code: codePOST, path: "data",
		payload: []byte(strconv.Itoa(kilobytes))})
	if err != nil {
		return err
	}
	posts, err := strconv.ParseInt(string(answer), 10, 64)
	if err != nil {
		return fmt.Errorf("answer to a POST: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if posts <= c.posts || posts > c.asked {
		return fmt.Errorf(
			"the server has counted %d POSTs, of which %d were answered before and %d were sent", posts,
			c.posts, c.asked)
	}
	c.posts = posts
	return nil
}

// Begin makes the server check all of its data, and adopts its count of POSTs: there may have been an
// earlier client.
func (c *Client) Begin(ctx context.Context) error {
	posts, err := c.look(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posts, c.asked = posts, posts
	return nil
}

// Check makes the server check all of its data.
func (c *Client) Check(ctx context.Context) error {
	posts, err := c.look(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if posts < c.posts || posts > c.asked {
		return fmt.Errorf("the server has counted %d POSTs, of which %d were answered and %d were sent",
			posts, c.posts, c.asked)
	}
	return nil
}

// look returns the server's count of POSTs. None of its data may be wrong.
func (c *Client) look(ctx context.Context) (posts int64, err error) {
	answer, err := c.request(ctx, message{code: codeGET, path: "check"})
	if err != nil {
		return 0, err
	}
	var kilobytes, wrong int64
	if _, err := fmt.Sscanf(string(answer), "%d %d %d", &posts, &kilobytes, &wrong); err != nil {
		return 0, fmt.Errorf("answer %.40q: %w", answer, err)
	}
	if wrong > 0 {
		return 0, fmt.Errorf("of %d kilobytes %d are wrong", kilobytes, wrong)
	}
	return posts, nil
}

// Close ends the client and returns its error.
func (c *Client) Close() error {
	c.end()
	err := c.conn.Close()
	c.work.Wait()
	return errors.Join(c.Err(), err)
}

// request sends a request, repeats it until there is an answer, and returns the answer's payload.
func (c *Client) request(ctx context.Context, m message) ([]byte, error) {
	answer := make(chan []byte, 1)
	c.mu.Lock()
	c.last++
	m.token, m.id = c.last, uint16(c.last)
	c.waiting[m.token] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, m.token)
		c.mu.Unlock()
	}()
	wait := patience
	for range repeats + 1 {
		if _, err := c.conn.Write(m.encode()); err != nil {
			return nil, err
		}
		select {
		case payload, ok := <-answer:
			if !ok {
				return nil, fmt.Errorf("%s was refused", m.path)
			}
			return payload, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
			wait *= 2
		}
	}
	return nil, fmt.Errorf("%s was not answered: sent %d times", m.path, repeats+1)
}

func (c *Client) listen() {
	buffer := make([]byte, 2048)
	for {
		n, err := c.conn.Read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if strings.Contains(err.Error(), "refused") {
				continue // no server listens yet: repeated later
			}
			c.fail(err)
			return
		}
		m, err := decode(buffer[:n])
		if err != nil {
			c.fail(err)
			return
		}
		c.deliver(m)
	}
}

// deliver passes an answer to its request. It drops a second answer to a repeated request.
func (c *Client) deliver(m message) {
	if m.kind == confirmable {
		_, _ = c.conn.Write(acknowledge(m.id)) // otherwise it comes again
	}
	if m.code == codeEmpty && m.kind != reset {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, ok := c.waiting[m.token]
	if !ok {
		return
	}
	delete(c.waiting, m.token)
	if m.kind == reset || m.code>>5 != 2 {
		close(answer)
		return
	}
	answer <- append([]byte(nil), m.payload...)
}
