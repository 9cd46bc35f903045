// Package face is a client of the lab image "recogniser", in the role of the mobile phone in study A (Ma et
// al., IEEE TMC 2019): it sends pictures of a camera and asks whose face is in them.
//
// The pictures are drawn, so the client knows the right answers.
package face

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/lab/workload"
)

// Port is the server's.
const Port = 7001

// Client is one camera.
type Client struct {
	conn    net.Conn
	reader  *bufio.Reader
	album   []shot
	answers workload.Answers
	end     context.CancelFunc
	work    sync.WaitGroup
	asking  sync.Mutex // one question at a time

	mu     sync.Mutex
	failed error
}

// shot is a picture, and the name of the person in it.
type shot struct {
	name string
	jpeg []byte
}

// New uses a connection, which is closed with the client.
func New(conn net.Conn) *Client {
	return &Client{conn: conn, reader: bufio.NewReader(conn), end: func() {}}
}

// Teach teaches the server the faces of all people. The client's later questions are about other pictures
// of the same people.
func (c *Client) Teach(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Now()) })()
	chance := rand.New(rand.NewPCG(1, 1))
	for _, who := range people() {
		if err := c.learn(who, chance); err != nil {
			return err
		}
	}
	answer, err := c.ask("TRAIN\n", nil)
	if err != nil || !strings.HasPrefix(answer, "ok ") {
		return fmt.Errorf("answer %q to TRAIN: %w", answer, err)
	}
	for _, who := range people() {
		if err := c.portray(who, chance); err != nil {
			return err
		}
	}
	if len(c.album) < fewest {
		return fmt.Errorf("of %d people the server can tell only %d from the others", len(people()),
			len(c.album))
	}
	return nil
}

// fewest is the minimum number of people with pictures.
const fewest = 4

// tries is how many pictures of a person are taken until one is good enough.
const tries = 5

// learn teaches the server three pictures of a person.
func (c *Client) learn(who person, chance *rand.Rand) error {
	learnt := 0
	for range 3 + tries {
		jpeg := photograph(who, chance)
		switch answer, err := c.ask(fmt.Sprintf("LEARN %s %d\n", who.name, len(jpeg)), jpeg); {
		case err != nil:
			return err
		case answer == "ok":
			learnt++
		}
		if learnt == 3 {
			return nil
		}
	}
	return fmt.Errorf("no face is found in pictures of %s", who.name)
}

// portray takes a picture of a person that the server recognises: the server must recognise it ever after.
// The client drops a person whom the server confuses with another one in picture after picture.
func (c *Client) portray(who person, chance *rand.Rand) error {
	for range tries {
		one := shot{who.name, photograph(who, chance)}
		name, err := c.name(one)
		if err != nil {
			return err
		}
		if name == one.name {
			c.album = append(c.album, one)
			return nil
		}
	}
	return nil
}

func (c *Client) ask(line string, jpeg []byte) (string, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	if _, err := c.conn.Write(append([]byte(line), jpeg...)); err != nil {
		return "", err
	}
	answer, err := c.reader.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// Start sends a picture, waits for the name, and sends the next one when it is due.
func (c *Client) Start(ctx context.Context, perSecond int) {
	ctx, c.end = context.WithCancel(ctx)
	c.work.Go(func() {
		ticker := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		for i := 0; ; i++ {
			asked := time.Now()
			if err := c.recognise(c.album[i%len(c.album)]); err != nil {
				c.fail(ctx, err)
				return
			}
			c.answers.Add(asked)
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
}

func (c *Client) recognise(s shot) error {
	name, err := c.name(s)
	if err == nil && name != s.name {
		err = fmt.Errorf("the face of %s was taken for %q", s.name, name)
	}
	return err
}

// name asks whose face is in a picture.
func (c *Client) name(s shot) (string, error) {
	answer, err := c.ask(fmt.Sprintf("WHO %d\n", len(s.jpeg)), s.jpeg)
	name, _, _ := strings.Cut(answer, " ")
	return name, err
}

func (c *Client) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // it was closed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
}

// Answers returns the correct answers.
func (c *Client) Answers() *workload.Answers { return &c.answers }

// Err returns the first error.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// Check asks about all people.
func (c *Client) Check(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Now()) })()
	for _, s := range c.album {
		if err := c.recognise(s); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the client and returns its error.
func (c *Client) Close() error {
	c.end()
	err := c.conn.Close()
	c.work.Wait()
	return errors.Join(c.Err(), err)
}
