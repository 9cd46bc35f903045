package control

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Config of a line.
type Config struct {
	Migration string        // its id
	Peer      identity.Node // the other node
	Nodes     Nodes
	// Dial makes a new connection to a node.
	Dial    func(identity.Node) (*grpc.ClientConn, error)
	Silence time.Duration // after which the peer counts as lost
	Timeout time.Duration // of a call that the peer answers at once
	// Answered is given the peer's answer to a message that was sent by a call.
	Answered func(*api.Message)
	Log      *slog.Logger
}

// Nodes keep connections to other nodes. See cluster.Peers.
type Nodes interface {
	Client(node identity.Node) (*grpc.ClientConn, error)
	// SessionClient is Client for a session, whose end the caller reports with done.
	SessionClient(node identity.Node) (client *grpc.ClientConn, done func(silent bool), err error)
}

// Line is a migration's way to tell the other node something: over the session as long as there is
// one, and by a call of its own when it is lost.
type Line struct {
	config Config
	ctx    context.Context //nolint:containedctx // The life of the daemon: messages outlive steps.

	mu      sync.Mutex
	session *session                       // nil: none yet, or lost
	calling map[migration.MessageKind]bool // messages that are under way without a session
}

// NewLine returns a line without a session. Its calls end with ctx.
func NewLine(ctx context.Context, config Config) *Line {
	return &Line{config: config, ctx: ctx, calling: map[migration.MessageKind]bool{}}
}

// Peer is the other node.
func (l *Line) Peer() identity.Node { return l.config.Peer }

// Attach makes a session the way to send, and passes on what comes until it is lost.
func (l *Line) Attach(stream Stream, receive func(*api.Envelope), attached func()) error {
	session := newSession(l.config.Silence)
	l.set(session)
	attached()
	return l.run(session, stream, receive)
}

func (l *Line) run(session *session, stream Stream, receive func(*api.Envelope)) error {
	err := session.run(stream, receive)
	guard.LogPanic(l.config.Log, err)
	l.drop(session)
	return err
}

func (l *Line) set(session *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = session
}

// drop makes a session that is lost no longer the way to send.
func (l *Line) drop(session *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == session {
		l.session = nil
	}
}

// current is the session as long as it stands.
func (l *Line) current() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

// Stands reports whether there is a session.
func (l *Line) Stands() bool { return l.current() != nil }

// AwaitEnd waits a while for the end of the session. Whether the peer has heard all or not, it is over then.
func (l *Line) AwaitEnd(ctx context.Context) {
	session := l.current()
	if session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lingerAtMost)
	defer cancel()
	_ = patience.UntilClosed(ctx, session.gone)
}

// Send tells the peer, without waiting. extend adds what belongs to the message.
func (l *Line) Send(message migration.Message, extend func(*api.Envelope)) {
	encoded, err := envelopes.Encode(message)
	if err != nil {
		l.config.Log.Error("message cannot be encoded", "kind", message.Kind, "error", err)
		return
	}
	envelope := &api.Envelope{Message: encoded}
	extend(envelope)
	if session := l.current(); session != nil {
		session.send(envelope)
		return
	}
	if message.Kind.NeedsSession() {
		return // Its answer could not come back: the loss of the session is what the machine hears of.
	}
	go guard.Logged(l.config.Log, func() { l.call(message.Kind, envelope.Message) })()
}

// call sends a message without a session. It may get lost: the machines repeat what matters. So
// there is no use in two that say the same.
func (l *Line) call(kind migration.MessageKind, message *api.Message) {
	if !l.beginCall(kind) {
		return
	}
	defer l.endCall(kind)
	reply, err := l.tell(l.ctx, message)
	if err != nil {
		l.config.Log.Debug("message not delivered", "migration", l.config.Migration, "kind", kind, "error",
			err)
		return
	}
	if reply.Answer != nil {
		l.config.Answered(reply.Answer)
	}
}

func (l *Line) beginCall(kind migration.MessageKind) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calling[kind] {
		return false
	}
	l.calling[kind] = true
	return true
}

func (l *Line) endCall(kind migration.MessageKind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.calling, kind)
}

// Tell sends the peer a message in a separate call and waits for the answer.
func (l *Line) Tell(ctx context.Context, message migration.Message) (*api.TellReply, error) {
	encoded, err := envelopes.Encode(message)
	if err != nil {
		return nil, err
	}
	return l.tell(ctx, encoded)
}

func (l *Line) tell(ctx context.Context, message *api.Message) (reply *api.TellReply, err error) {
	err = l.Ask(ctx, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Tell(ctx, &api.TellRequest{Migration: l.config.Migration, Message: message})
		return err
	})
	return reply, err
}

// Ask makes a call that the peer answers at once.
func (l *Line) Ask(ctx context.Context, call func(context.Context, api.PeerClient) error) error {
	return l.AskFor(ctx, l.config.Timeout, call)
}

// AskFor makes a call to the peer. Without a session nobody knows whether the connection that is
// kept still works, and TCP may take long to find out; so it gets a new one then.
func (l *Line) AskFor(ctx context.Context, limit time.Duration,
	call func(context.Context, api.PeerClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if session := l.current(); session != nil {
		client, err := l.config.Nodes.Client(l.config.Peer)
		if err != nil {
			return err
		}
		go guard.Logged(l.config.Log, func() { session.onLoss(ctx, cancel) })()
		return call(ctx, api.NewPeerClient(client))
	}
	client, err := l.config.Dial(l.config.Peer)
	if err != nil {
		return err
	}
	defer client.Close()
	return call(ctx, api.NewPeerClient(client))
}

// Close ends the session, when what was said has left.
func (l *Line) Close() {
	if session := l.current(); session != nil {
		session.close()
	}
}
