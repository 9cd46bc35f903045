// Package broker is a user of study D's RabbitMQ (Souza Junior et al., CloudCom 2020): it publishes
// messages that must not be lost, consumes them, and checks that no confirmed message is ever missing.
//
// It behaves like a careful user: messages that were not confirmed when its connection ended are published
// again over the next one.
package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/godwit/godwit/internal/lab/workload"
)

const (
	// Port is the server's.
	Port = 5672
	// MessageBytes is the size of a message.
	MessageBytes = 128_000

	stock = "stock" // the queue of messages that stay
	work  = "work"  // the queue of messages that come and go

	// outstanding is how many messages of the stock are under way.
	outstanding = 32
)

// Client publishes and consumes.
type Client struct {
	dial    func(ctx context.Context) (net.Conn, error)
	answers workload.Answers
	end     context.CancelFunc
	quiet   chan struct{} // closed to stop publishing new messages
	running sync.WaitGroup

	mu        sync.Mutex
	stocked   int
	next      uint64
	pending   map[uint64]time.Time // published, or to be published, and not confirmed
	confirmed map[uint64]bool      // true: also consumed
	early     map[uint64]bool      // consumed before the confirmation
	sessions  int
	failed    error
}

// New makes a client that connects with dial, again and again.
func New(dial func(ctx context.Context) (net.Conn, error)) *Client {
	return &Client{
		dial: dial, end: func() {}, quiet: make(chan struct{}),
		pending: map[uint64]time.Time{}, confirmed: map[uint64]bool{}, early: map[uint64]bool{},
	}
}

// message returns the content of the message with this number.
func message(number uint64) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], number)
	body := make([]byte, MessageBytes)
	_, _ = rand.NewChaCha8(seed).Read(body) // it never fails
	binary.LittleEndian.PutUint64(body, number)
	return body
}

// connect also creates the queues, which survive the server.
func (c *Client) connect(ctx context.Context) (*amqp.Connection, error) {
	connection, err := amqp.DialConfig("amqp://guest:guest@server/", amqp.Config{
		SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}},
		Dial: func(string, string) (net.Conn, error) { return c.dial(ctx) },
	})
	if err != nil {
		return nil, err
	}
	channel, err := connection.Channel()
	for _, queue := range []string{stock, work} {
		if err == nil {
			_, err = channel.QueueDeclare(queue, true, false, false, false,
				amqp.Table{"x-queue-mode": "lazy"})
		}
	}
	if err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return connection, nil
}

// Fill waits until the server answers, and stores so many bytes of messages that stay.
func (c *Client) Fill(ctx context.Context, size int64) error {
	var connection *amqp.Connection
	for {
		var err error
		if connection, err = c.connect(ctx); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the broker does not answer: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		return err
	}
	var waiting []*amqp.DeferredConfirmation
	for number := range int(size / MessageBytes) {
		one, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", stock, false,
			false, persistent(uint64(number)|1<<63))
		if err != nil {
			return err
		}
		c.stocked++
		if waiting = append(waiting, one); len(waiting) < outstanding {
			continue
		}
		if ok, err := waiting[0].WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("a message of the stock was not confirmed: %w", err)
		}
		waiting = waiting[1:]
	}
	for _, one := range waiting {
		if ok, err := one.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("a message of the stock was not confirmed: %w", err)
		}
	}
	return nil
}

func persistent(number uint64) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, Body: message(number)}
}

// Start publishes so many messages a second, and consumes them, until the client is closed.
func (c *Client) Start(ctx context.Context, perSecond int) {
	ctx, c.end = context.WithCancel(ctx)
	c.running.Go(func() {
		for ctx.Err() == nil {
			err := c.session(ctx, perSecond)
			if loss := (*lossError)(nil); errors.As(err, &loss) {
				c.mu.Lock()
				c.failed = err
				c.mu.Unlock()
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

// lossError is an error that no new connection repairs.
type lossError struct{ what string }

func (e *lossError) Error() string { return e.what }

// session is one connection.
func (c *Client) session(ctx context.Context, perSecond int) error {
	connection, err := c.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.CloseDeadline(time.Now()) })()
	c.mu.Lock()
	c.sessions++
	c.mu.Unlock()
	ended := make(chan error, 2)
	go func() { ended <- c.consume(connection) }()
	go func() { ended <- c.publish(ctx, connection, perSecond) }()
	err = <-ended
	cancel()
	return errors.Join(err, <-ended)
}

// publish publishes unconfirmed messages again, and then new ones.
func (c *Client) publish(ctx context.Context, connection *amqp.Connection, perSecond int) error {
	channel, err := connection.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		return err
	}
	confirmations := channel.NotifyPublish(make(chan amqp.Confirmation, 1<<14))
	var numbers sync.Map // of messages, by tag
	gone := make(chan error, 1)
	go func() {
		for one := range confirmations {
			number, _ := numbers.Load(one.DeliveryTag)
			if err := c.confirm(number.(uint64), one.Ack); err != nil {
				gone <- err
				return
			}
		}
		gone <- errors.New("the channel was closed")
	}()
	send := func(number uint64) error {
		numbers.Store(channel.GetNextPublishSeqNo(), number)
		return channel.PublishWithContext(ctx, "", work, false, false, persistent(number))
	}
	for _, number := range c.unconfirmed() {
		if err := send(number); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for {
		select {
		case err := <-gone:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-c.quiet:
			ticker.Stop()
		case <-ticker.C:
			if err := send(c.number()); err != nil {
				return err
			}
			continue
		}
		select { // publishing has stopped
		case err := <-gone:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Client) unconfirmed() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []uint64
	for number := range c.pending {
		all = append(all, number)
	}
	return all
}

// number returns the number of the next message, which is not confirmed yet.
func (c *Client) number() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	c.pending[c.next] = time.Now()
	return c.next
}

func (c *Client) confirm(number uint64, ack bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked, waits := c.pending[number]
	switch {
	case !ack:
		return &lossError{fmt.Sprintf("the broker does not want message %d", number)}
	case !waits:
		return nil // published twice
	}
	delete(c.pending, number)
	c.confirmed[number] = c.early[number]
	delete(c.early, number)
	c.answers.Add(asked)
	return nil
}

// consume consumes messages.
func (c *Client) consume(connection *amqp.Connection) error {
	channel, err := connection.Channel()
	if err == nil {
		err = channel.Qos(64, 0, false)
	}
	if err != nil {
		return err
	}
	deliveries, err := channel.Consume(work, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for one := range deliveries {
		if err := c.take(one.Body); err != nil {
			return err
		}
		if err := one.Ack(false); err != nil {
			return err
		}
	}
	return errors.New("the channel was closed")
}

func (c *Client) take(body []byte) error {
	if len(body) != MessageBytes {
		return &lossError{fmt.Sprintf("a message has %d bytes", len(body))}
	}
	number := binary.LittleEndian.Uint64(body)
	if !bytes.Equal(body, message(number)) {
		return &lossError{fmt.Sprintf("message %d is not what it was", number)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.confirmed[number]; known {
		c.confirmed[number] = true
	} else {
		c.early[number] = true
	}
	return nil
}

// Answers returns the confirmations.
func (c *Client) Answers() *workload.Answers { return &c.answers }

// Sessions returns the number of connections so far.
func (c *Client) Sessions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions
}

// Err returns the loss, if there was one.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// Check stops publishing, and waits until everything is confirmed, and everything confirmed is consumed.
// The stock must be unchanged.
func (c *Client) Check(ctx context.Context) error {
	c.mu.Lock()
	select {
	case <-c.quiet:
	default:
		close(c.quiet)
	}
	c.mu.Unlock()
	for {
		pending, missing, err := c.missing()
		if err != nil {
			return err
		}
		if pending+missing == 0 {
			return c.checkStock(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d messages are not confirmed, %d were confirmed and are lost", pending,
				missing)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (c *Client) missing() (pending, missing int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, taken := range c.confirmed {
		if !taken {
			missing++
		}
	}
	return len(c.pending), missing, c.failed
}

func (c *Client) checkStock(ctx context.Context) error {
	connection, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	queue, err := channel.QueueDeclarePassive(stock, true, false, false,
		false, amqp.Table{"x-queue-mode": "lazy"})
	if err != nil {
		return err
	}
	if queue.Messages != c.stocked {
		return fmt.Errorf("of %d messages in stock there are %d", c.stocked, queue.Messages)
	}
	return nil
}

// Close ends the client and returns its error.
func (c *Client) Close() error {
	c.end()
	c.running.Wait()
	return c.Err()
}
