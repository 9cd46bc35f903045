package agent

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// control is a migration's way to tell the other node something: over the session as long as there
// is one, and by a call of its own when it is lost.
type control struct {
	agent *Agent
	move  *move
	peer  identity.Node

	mu      sync.Mutex
	session *session                       // nil: none yet, or lost
	calling map[migration.MessageKind]bool // messages that are under way without a session
}

func newControl(agent *Agent, m *move, peer identity.Node) control {
	return control{agent: agent, move: m, peer: peer, calling: map[migration.MessageKind]bool{}}
}

// attach makes a session the way to send, and passes on what comes until it is lost.
func (c *control) attach(stream envelopeStream, receive func(*api.Envelope), attached func()) error {
	session := newSession(c.agent.config.peerTimeout())
	c.set(session)
	attached()
	return c.run(session, stream, receive)
}

func (c *control) run(session *session, stream envelopeStream, receive func(*api.Envelope)) error {
	err := session.run(stream, receive)
	c.agent.logPanic(err)
	c.drop(session)
	return err
}

func (c *control) set(session *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = session
}

// drop makes a session that is lost no longer the way to send.
func (c *control) drop(session *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == session {
		c.session = nil
	}
}

// current is the session as long as it stands.
func (c *control) current() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// send tells the peer, without waiting.
func (c *control) send(message migration.Message, extend func(*api.Envelope)) {
	encoded, err := envelopes.Encode(message)
	if err != nil {
		c.agent.log.Error("message cannot be encoded", "kind", message.Kind, "error", err)
		return
	}
	envelope := &api.Envelope{Message: encoded}
	extend(envelope)
	if session := c.current(); session != nil {
		session.send(envelope)
		return
	}
	if message.Kind.NeedsSession() {
		return // Its answer could not come back: the loss of the session is what the machine hears of.
	}
	go c.agent.guarded(func() { c.call(message.Kind, envelope.Message) })()
}

// call sends a message without a session. It may get lost: the machines repeat what matters. So
// there is no use in two that say the same.
func (c *control) call(kind migration.MessageKind, message *api.Message) {
	if !c.beginCall(kind) {
		return
	}
	defer c.endCall(kind)
	var reply *api.TellReply
	err := c.ask(c.agent.ctx, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Tell(ctx, &api.TellRequest{Migration: c.move.tracker.Spec.ID, Message: message})
		return err
	})
	if err != nil {
		c.agent.log.Debug("message not delivered", "migration", c.move.tracker.Spec.ID, "kind", kind, "error",
			err)
		return
	}
	if reply.Answer != nil {
		c.agent.deliver(c.move, reply.Answer)
	}
}

func (c *control) beginCall(kind migration.MessageKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calling[kind] {
		return false
	}
	c.calling[kind] = true
	return true
}

func (c *control) endCall(kind migration.MessageKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calling, kind)
}

// ask makes a call that the peer answers at once.
func (c *control) ask(ctx context.Context, call func(context.Context, api.PeerClient) error) error {
	return c.askFor(ctx, c.agent.config.callTimeout(), call)
}

// askFor makes a call to the peer. Without a session nobody knows whether the connection that is
// kept still works, and TCP may take long to find out; so it gets a new one then.
func (c *control) askFor(ctx context.Context, limit time.Duration,
	call func(context.Context, api.PeerClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if session := c.current(); session != nil {
		client, err := c.agent.peers.Client(c.peer)
		if err != nil {
			return err
		}
		go c.agent.guarded(func() { session.onLoss(ctx, cancel) })()
		return call(ctx, api.NewPeerClient(client))
	}
	client, err := wire.DialControl(c.agent.id, c.peer.Address, c.peer.Name, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	return call(ctx, api.NewPeerClient(client))
}

// close ends the session, when what was said has left.
func (c *control) close() {
	if session := c.current(); session != nil {
		session.close()
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
	session := newSession(c.agent.config.peerTimeout())
	session.send(first)
	c.set(session)
	go c.move.guarded(func() {
		defer c.drop(session)
		err := c.dial(session)
		c.drop(session)
		if reason, refused := refusal(session, err); refused {
			c.move.tell(migration.Received{Message: migration.Message{Kind: migration.KindNeverRan,
				Error: reason}})
			return
		}
		c.move.tell(migration.PeerLost{Error: plain(err)})
	})()
}

// refusal reports whether the peer refused the offer. Then it knows nothing of the migration and
// never will: an offer is made once.
func refusal(session *session, err error) (reason string, refused bool) {
	s, ok := status.FromError(err)
	if !ok || session.heard.Load() {
		return "", false
	}
	switch s.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists, codes.PermissionDenied,
		codes.ResourceExhausted, codes.Unimplemented:
		return s.Message(), true
	default:
		return "", false
	}
}

func (c *sourceControl) dial(session *session) error {
	client, done, err := c.agent.peers.SessionClient(c.peer)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.agent.ctx)
	defer cancel()
	stream, err := openSession(ctx, cancel, client)
	if err == nil {
		err = c.run(session, stream, c.receive)
	}
	done(errors.Is(err, errSilent))
	return err
}

// reconnectTimeout is how long a new session waits for a node that could not be reached just now:
// the way may be back.
const reconnectTimeout = 3 * time.Second

// openSession opens a session, with a new connection if the last one failed: how that went may be long ago.
func openSession(ctx context.Context, cancel func(),
	client *grpc.ClientConn) (grpc.BidiStreamingClient[api.Envelope, api.Envelope], error) {
	limit := time.AfterFunc(reconnectTimeout, cancel)
	client.ResetConnectBackoff()
	stream, err := api.NewPeerClient(client).Session(ctx, grpc.WaitForReady(true))
	if !limit.Stop() && err != nil {
		// what gRPC says before is that we gave up
		_, why, _ := strings.Cut(status.Convert(err).Message(), "latest balancer error: ")
		err = status.Errorf(codes.Unavailable, "it cannot be reached: %s",
			cmp.Or(why, "no answer for "+reconnectTimeout.String()))
	}
	return stream, err
}

func (c *sourceControl) sendMessage(message migration.Message, extend func(*api.Envelope)) {
	if message.Kind != migration.KindReserve {
		c.send(message, extend)
		return
	}
	encoded, err := envelopes.Encode(message)
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
		message, err := envelopes.Decode(envelope.Message)
		if err != nil {
			c.agent.log.Warn("message cannot be decoded", "from", c.peer.Name, "error", err)
			return
		}
		c.move.tell(migration.Received{Message: message})
	}
}

// plain is an error as another node is told it.
func plain(err error) string { return api.Plain(err) }
