package agent

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// control is a migration's way to tell the other node something: over the session as long as there is one, and by a
// call of its own when it is lost.
type control struct {
	agent *Agent
	move  *move
	peer  identity.Node

	mu      sync.Mutex
	session *session // nil: none yet, or lost
}

// attach makes a session the way to send, and passes on what comes until it is lost.
func (c *control) attach(stream envelopeStream, receive func(*api.Envelope), attached func()) error {
	session := newSession()
	c.mu.Lock()
	c.session = session
	c.mu.Unlock()
	attached()
	return c.run(session, stream, receive)
}

func (c *control) run(session *session, stream envelopeStream, receive func(*api.Envelope)) error {
	err := session.run(stream, receive)
	c.drop(session)
	return err
}

// drop makes a session that is lost no longer the way to send.
func (c *control) drop(session *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == session {
		c.session = nil
	}
}

// send tells the peer, without waiting.
func (c *control) send(message migration.Message, extend func(*api.Envelope)) {
	encoded, err := encodeMessage(message)
	if err != nil {
		c.agent.log.Error("message cannot be encoded", "kind", message.Kind, "error", err)
		return
	}
	envelope := &api.Envelope{Message: encoded}
	extend(envelope)
	c.mu.Lock()
	session := c.session
	c.mu.Unlock()
	if session != nil {
		session.send(envelope)
		return
	}
	if message.Kind.NeedsSession() {
		return // Its answer could not come back: the loss of the session is what the machine hears of.
	}
	go c.call(envelope.Message)
}

// call sends a message without a session. It may get lost: the machines repeat what matters.
func (c *control) call(message *api.Message) {
	ctx, cancel := context.WithTimeout(c.agent.ctx, 5*time.Second)
	defer cancel()
	client, err := c.agent.peers.client(c.peer)
	if err == nil {
		_, err = api.NewPeerClient(client).Tell(ctx, &api.TellRequest{Migration: c.move.tracker.spec.ID, Message: message})
	}
	if err != nil {
		c.agent.log.Debug("message not delivered", "migration", c.move.tracker.spec.ID, "kind", message.Kind, "error", err)
	}
}

// sourceControl is the source's end: it opens the session.
type sourceControl struct {
	control
	offer       func() *api.Offer
	reservation func(*api.Reservation)
}

// open begins the session; the first message says what is offered.
func (c *sourceControl) open(first *api.Envelope) {
	session := newSession()
	session.send(first)
	c.mu.Lock()
	c.session = session
	c.mu.Unlock()
	go func() {
		err := c.dial(session)
		c.drop(session)
		c.move.tell(migration.PeerLost{Error: plain(err)})
	}()
}

func (c *sourceControl) dial(session *session) error {
	client, err := c.agent.peers.client(c.peer)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.agent.ctx)
	defer cancel()
	stream, err := api.NewPeerClient(client).Session(ctx)
	if err != nil {
		return err
	}
	return c.run(session, stream, c.receive)
}

func (c *sourceControl) sendMessage(message migration.Message, extend func(*api.Envelope)) {
	if message.Kind != migration.KindReserve {
		c.send(message, extend)
		return
	}
	encoded, err := encodeMessage(message)
	if err != nil {
		c.move.tell(migration.PeerLost{Error: err.Error()})
		return
	}
	c.open(&api.Envelope{Message: encoded, Offer: c.offer()})
}

func (c *sourceControl) receive(envelope *api.Envelope) {
	if envelope.Reservation != nil {
		c.reservation(envelope.Reservation)
	}
	if envelope.Message != nil {
		message, err := decodeMessage(envelope.Message)
		if err != nil {
			c.agent.log.Warn("message cannot be decoded", "from", c.peer.Name, "error", err)
			return
		}
		c.move.tell(migration.Received{Message: message})
	}
}

// close ends the session, when what was said has left.
func (c *control) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		c.session.close()
	}
}

// plain makes the text of an error that came from gRPC or from here.
func plain(err error) string {
	if err == nil {
		return "it ended"
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
