package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

const testMigration = "0123456789abcdef"

// peer is the other node: it answers over a connection in memory.
type peer struct {
	api.UnimplementedPeerServer

	tell    func(*api.TellRequest) (*api.TellReply, error)
	session func(grpc.BidiStreamingServer[api.Envelope, api.Envelope]) error

	listener *bufconn.Listener
	mu       sync.Mutex
	silent   bool // the last session ended by silence
	sessions int  // under way
}

func (p *peer) Tell(_ context.Context, request *api.TellRequest) (*api.TellReply, error) {
	return p.tell(request)
}

func (p *peer) Session(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope]) error {
	return p.session(stream)
}

func serve(t *testing.T, p *peer) *peer {
	t.Helper()
	p.listener = bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	api.RegisterPeerServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(p.listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *peer) dial(identity.Node) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///b", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return p.listener.DialContext(ctx)
		}))
}

// Client implements Nodes.
func (p *peer) Client(node identity.Node) (*grpc.ClientConn, error) { return p.dial(node) }

// SessionClient implements Nodes.
func (p *peer) SessionClient(node identity.Node) (*grpc.ClientConn, func(silent bool), error) {
	client, err := p.dial(node)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions++
	return client, func(silent bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sessions--
		p.silent = silent
		client.Close()
	}, err
}

func (p *peer) config(answered func(*api.Message)) Config {
	return Config{
		Migration: testMigration, Peer: identity.Node{Name: "b"}, Nodes: p, Dial: p.dial,
		Silence: time.Minute, Timeout: time.Minute, Answered: answered, Log: slog.New(slog.DiscardHandler),
	}
}

func noAnswer(*api.Message) {}

func nothingMore(*api.Envelope) {}

func TestSendWithoutSession(t *testing.T) {
	told, goOn := make(chan string, 8), make(chan struct{})
	p := serve(t, &peer{tell: func(request *api.TellRequest) (*api.TellReply, error) {
		told <- request.Migration + " " + request.Message.Kind
		<-goOn
		return &api.TellReply{Answer: &api.Message{Kind: "confirm"}}, nil
	}})
	answers := make(chan *api.Message, 8)
	line := NewLine(t.Context(), p.config(func(message *api.Message) { answers <- message }))
	line.Send(migration.Message{Kind: migration.KindPrepared}, nothingMore) // could not be answered
	running := migration.Message{Kind: migration.KindRunning}
	line.Send(running, nothingMore)
	if got := <-told; got != testMigration+" running" {
		t.Errorf("told %q", got)
	}
	line.call(migration.KindRunning, &api.Message{Kind: "running"}) // is under way, so it returns at once
	close(goOn)
	if answer := <-answers; answer.Kind != "confirm" {
		t.Errorf("answer %v", answer)
	}
	if len(told) > 0 {
		t.Errorf("told once more: %q", <-told)
	}
}

func TestMessageIsLost(t *testing.T) {
	failed := errors.New("failed")
	config := (&peer{}).config(noAnswer)
	config.Dial = func(identity.Node) (*grpc.ClientConn, error) { return nil, failed }
	line := NewLine(t.Context(), config)
	line.call(migration.KindRunning, &api.Message{Kind: "running"}) // the machines repeat what matters
	_, err := line.Tell(t.Context(), migration.Message{Kind: migration.KindRunning})
	if !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if !line.beginCall(migration.KindRunning) {
		t.Error("a call that has ended counts as under way")
	}
	if line.Stands() {
		t.Error("there is no session")
	}
	line.Close()
	line.AwaitEnd(t.Context())
}

// TestAttach has the target's end answer over the session, until the source's end is gone.
func TestAttach(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	here, there := newPipe(ctx)
	line := NewLine(t.Context(), (&peer{}).config(noAnswer))
	heard := make(chan string, 8)
	ended := make(chan error, 1)
	go func() {
		ended <- line.Attach(here, func(e *api.Envelope) { heard <- e.Message.Kind }, func() {
			line.Send(migration.Message{Kind: migration.KindReserved}, func(e *api.Envelope) {
				e.Reservation = &api.Reservation{StartsLate: true}
			})
		})
	}()
	said, err := there.Recv()
	if err != nil || said.Message.Kind != "reserved" || !said.Reservation.GetStartsLate() {
		t.Fatalf("said %v, %v", said, err)
	}
	if err := there.Send(&api.Envelope{Message: &api.Message{Kind: "abort"}}); err != nil {
		t.Fatal(err)
	}
	if kind := <-heard; kind != "abort" || !line.Stands() {
		t.Errorf("heard %q, stands: %t", kind, line.Stands())
	}
	cancel()
	if err := <-ended; err == nil || line.Stands() {
		t.Errorf("error %v, stands: %t", err, line.Stands())
	}
}

// TestAskEndsWithTheSession: a call over a connection that broke with the session is not waited for.
func TestAskEndsWithTheSession(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	here, _ := newPipe(ctx)
	p := serve(t, &peer{})
	line := NewLine(t.Context(), p.config(noAnswer))
	attached, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- line.Attach(here, nothingMore, func() { close(attached) }) }()
	<-attached
	err := line.Ask(t.Context(), func(ctx context.Context, _ api.PeerClient) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-ended
}

// leaving is a migration at its source.
type leaving struct {
	events   chan migration.Event
	reserved chan *api.Reservation
}

func newLeaving() *leaving {
	return &leaving{events: make(chan migration.Event, 8), reserved: make(chan *api.Reservation, 8)}
}

func (l *leaving) Offer() *api.Offer              { return &api.Offer{Migration: testMigration} }
func (l *leaving) Reserved(told *api.Reservation) { l.reserved <- told }
func (l *leaving) Happen(event migration.Event)   { l.events <- event }
func (l *leaving) Guarded(do func()) func()       { return do }

// TestSource opens a session by its first message, and hears of its loss after each number of messages.
func TestSource(t *testing.T) {
	for messages := range 3 {
		p := serve(t, &peer{session: func(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope]) error {
			first, err := stream.Recv()
			if err != nil || first.Offer.GetMigration() != testMigration ||
				first.Message.GetKind() != "reserve" {
				return status.Errorf(codes.Internal, "first message %v, %v", first, err)
			}
			for range messages {
				if err := stream.Send(&api.Envelope{
					Message: &api.Message{Kind: "reserved"}, Reservation: &api.Reservation{},
				}); err != nil {
					return err
				}
			}
			return status.Error(codes.Unavailable, "broken")
		}})
		of := newLeaving()
		source := NewSource(t.Context(), p.config(noAnswer), of)
		source.Send(migration.Message{Kind: migration.KindReserve}, nothingMore)
		for range messages {
			<-of.reserved
			heard, is := (<-of.events).(migration.Received)
			if !is || heard.Message.Kind != migration.KindReserved {
				t.Errorf("heard %v", heard)
			}
		}
		if lost, is := (<-of.events).(migration.PeerLost); !is || lost.Error == "" || source.Stands() {
			t.Errorf("after %d messages: lost %+v, stands: %t", messages, lost, source.Stands())
		}
	}
}

func TestRefusedOffer(t *testing.T) {
	p := serve(t, &peer{session: func(grpc.BidiStreamingServer[api.Envelope, api.Envelope]) error {
		return status.Error(codes.FailedPrecondition, "no room")
	}})
	of := newLeaving()
	source := NewSource(t.Context(), p.config(noAnswer), of)
	source.Send(migration.Message{Kind: migration.KindReserve}, nothingMore)
	heard, is := (<-of.events).(migration.Received)
	if !is || heard.Message.Kind != migration.KindNeverRan || heard.Message.Error != "no room" {
		t.Errorf("heard %+v", heard)
	}
}

// TestSilentTarget: the connection of a session that ended by silence is reported as broken.
func TestSilentTarget(t *testing.T) {
	p := serve(t, &peer{session: func(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope]) error {
		<-stream.Context().Done()
		return io.EOF
	}})
	of, config := newLeaving(), p.config(noAnswer)
	config.Silence = 50 * time.Millisecond
	NewSource(t.Context(), config, of).Send(migration.Message{Kind: migration.KindReserve}, nothingMore)
	if _, is := (<-of.events).(migration.PeerLost); !is {
		t.Error("the loss was not told")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.silent || p.sessions > 0 {
		t.Errorf("silent: %t, %d sessions", p.silent, p.sessions)
	}
}
