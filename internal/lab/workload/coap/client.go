// Package coap is a client of the CoAP server of Puliafito et al. (Sensors 2019): it has some of
// the server's data changed once a second, asks a small question many times a second, and measures
// how long the answers take.
//
// It speaks as much of RFC 7252 as that needs, and repeats what is not answered in time, as every
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
	// patience before a request is repeated, doubled each time, and how often it is (RFC 7252, section 4.8).
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
	posts   int64  // that were answered
	asked   int64  // posts that may have been done
	failed  error
}

// New begins to use a connection, which is closed with the client.
func New(conn net.Conn) *Client {
	c := &Client{conn: conn, waiting: map[uint32]chan []byte{}, end: func() {}}
	c.work.Go(c.listen)
	return c
}

// Start asks all the time, and has so many kilobytes changed each second.
func (c *Client) Start(ctx context.Context, kilobytes int) {
	ctx, c.end = context.WithCancel(ctx)
	c.work.Go(func() { c.repeat(ctx, askEvery, c.ask) })
	c.work.Go(func() {
		c.repeat(ctx, time.Second,
			func(ctx context.Context) error { return c.Post(ctx, kilobytes) })
	})
}

// Answers are those to the small questions.
func (c *Client) Answers() *workload.Answers { return &c.answers }

// Err tells what went wrong.
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

// Post has so many kilobytes changed. The server must have counted each that was answered.
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

// Begin has the server look at all of its data, and takes the POSTs that it has counted for done:
// another client may have been there before.
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

// Check has the server look at all of its data.
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

// look tells how many POSTs the server has counted. None of its data may be wrong.
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

// Close ends the client and tells what went wrong.
func (c *Client) Close() error {
	c.end()
	err := c.conn.Close()
	c.work.Wait()
	return errors.Join(c.Err(), err)
}

// request sends a request, repeats it as long as it is not answered, and returns the answer's payload.
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
				continue // nobody listens yet: asked again later
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

// deliver gives an answer to who waits for it. One that comes twice, because it was asked for twice, is left.
func (c *Client) deliver(m message) {
	if m.kind == confirmable {
		_, _ = c.conn.Write(acknowledge(m.id)) // or it comes again
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
