package control

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/migration"
)

// Migration is what the source's end of a line needs of its migration.
type Migration interface {
	// Offer describes what is to be moved.
	Offer() *api.Offer
	// Reserved is told what the target has reserved.
	Reserved(reservation *api.Reservation)
	// Happen processes an event that nobody waits for.
	Happen(event migration.Event)
	// Guarded is do for a goroutine of its own: a panic breaks the migration off.
	Guarded(do func()) func()
}

// Source is the source's end of a line: it opens the session.
type Source struct {
	*Line
	of Migration
}

// NewSource returns the end of a line that opens the session with its first message.
func NewSource(ctx context.Context, config Config, of Migration) *Source {
	return &Source{Line: NewLine(ctx, config), of: of}
}

// Send is Line.Send. The request for a reservation begins the session, with the offer.
func (s *Source) Send(message migration.Message, extend func(*api.Envelope)) {
	if message.Kind != migration.KindReserve {
		s.Line.Send(message, extend)
		return
	}
	encoded, err := envelopes.Encode(message)
	if err != nil {
		s.of.Happen(migration.PeerLost{Error: err.Error()})
		return
	}
	s.open(&api.Envelope{Message: encoded, Offer: s.of.Offer()})
}

// open begins the session; the first message says what is offered.
func (s *Source) open(first *api.Envelope) {
	session := newSession(s.config.Silence)
	session.send(first)
	s.set(session)
	go s.of.Guarded(func() {
		defer s.drop(session)
		err := s.dial(session)
		s.drop(session)
		if reason, refused := refusal(session, err); refused {
			s.of.Happen(migration.Received{Message: migration.Message{Kind: migration.KindNeverRan,
				Error: reason}})
			return
		}
		s.of.Happen(migration.PeerLost{Error: api.Plain(err)})
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

func (s *Source) dial(session *session) error {
	client, done, err := s.config.Nodes.SessionClient(s.config.Peer)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	stream, err := Open(ctx, cancel, client)
	if err == nil {
		err = s.run(session, stream, s.receive)
	}
	done(errors.Is(err, errSilent))
	return err
}

// reconnectTimeout is how long a new session waits for a node that could not be reached just now:
// the way may be back.
const reconnectTimeout = 3 * time.Second

// Open opens a session, with a new connection if the last one failed: how that went may be long ago. cancel
// ends ctx.
func Open(ctx context.Context, cancel func(),
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

func (s *Source) receive(envelope *api.Envelope) {
	if envelope.Reservation != nil {
		s.of.Reserved(envelope.Reservation)
	}
	if envelope.Message != nil {
		message, err := envelopes.Decode(envelope.Message)
		if err != nil {
			s.config.Log.Warn("message cannot be decoded", "from", s.config.Peer.Name, "error", err)
			return
		}
		s.of.Happen(migration.Received{Message: message})
	}
}
