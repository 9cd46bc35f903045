package control

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
)

// pipeStream is one end of a session without a network.
type pipeStream struct {
	ctx  context.Context //nolint:containedctx // As in gRPC's streams.
	in   <-chan *api.Envelope
	out  chan<- *api.Envelope
	sent atomic.Int32
}

func (p *pipeStream) Send(e *api.Envelope) error {
	select {
	case p.out <- e:
		p.sent.Add(1)
		return nil
	case <-p.ctx.Done():
		return io.EOF
	}
}

func (p *pipeStream) Recv() (*api.Envelope, error) {
	select {
	case e := <-p.in:
		return e, nil
	case <-p.ctx.Done():
		return nil, status.FromContextError(p.ctx.Err()).Err()
	}
}

func newPipe(ctx context.Context) (a, b *pipeStream) {
	there, back := make(chan *api.Envelope), make(chan *api.Envelope)
	return &pipeStream{ctx: ctx, in: back, out: there}, &pipeStream{ctx: ctx, in: there, out: back}
}

func TestSessionGivesSignsOfLife(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, b := newPipe(ctx)
	left, right := newSession(time.Second), newSession(time.Second)
	ended := make(chan error, 2)
	enough := make(chan struct{}, 1<<10)
	for s, stream := range map[*session]*pipeStream{left: a, right: b} {
		go func() { ended <- s.run(stream, func(*api.Envelope) { enough <- struct{}{} }) }()
	}
	for range 4 * signsOfLife { // so for longer than silence is borne, on both sides
		select {
		case <-enough:
		case err := <-ended:
			t.Fatalf("a session ended although both ends live: %v", err)
		}
	}
	left.close()
	if err := <-ended; err != nil {
		t.Errorf("a session that was closed here ends with %v", err)
	}
}

func TestSessionNoticesSilence(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, b := newPipe(ctx)
	go func() {
		for { // the peer reads, and says nothing
			if _, err := b.Recv(); err != nil {
				return
			}
		}
	}()
	s := newSession(50 * time.Millisecond)
	if err := s.run(a, func(*api.Envelope) { t.Error("something was heard") }); !errors.Is(err, errSilent) {
		t.Errorf("error %v, want %v", err, errSilent)
	}
	if a.sent.Load() == 0 {
		t.Error("this end gave no sign of life")
	}
	select {
	case <-s.gone:
	default:
		t.Error("who waits for the end of the session waits on")
	}
}

func TestSessionSendsWhatWasSaidBeforeItIsClosed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, b := newPipe(ctx)
	s := newSession(time.Minute)
	for range 3 {
		s.send(&api.Envelope{Message: &api.Message{Kind: "abort"}})
	}
	s.close()
	ended := make(chan error, 1)
	go func() { ended <- s.run(a, func(*api.Envelope) {}) }()
	for range 3 {
		if _, err := b.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRefusal(t *testing.T) {
	heard := newSession(time.Minute)
	heard.heard.Store(true)
	for name, c := range map[string]struct {
		session *session
		err     error
		want    bool
	}{
		"refused":                {newSession(time.Minute), status.Error(codes.InvalidArgument, "no"), true},
		"another version":        {newSession(time.Minute), status.Error(codes.Unimplemented, "no"), true},
		"not reached":            {newSession(time.Minute), status.Error(codes.Unavailable, "no"), false},
		"ended":                  {newSession(time.Minute), io.EOF, false},
		"it had accepted it":     {heard, status.Error(codes.InvalidArgument, "no"), false},
		"nothing to complain":    {newSession(time.Minute), nil, false},
		"broken in the meantime": {newSession(time.Minute), status.Error(codes.Canceled, "no"), false},
	} {
		if _, got := refusal(c.session, c.err); got != c.want {
			t.Errorf("%s: refused %t, want %t", name, got, c.want)
		}
	}
}

// TestPanicInASessionEndsIt: what a peer sends is handled in a goroutine of the session.
func TestPanicInASessionEndsIt(t *testing.T) {
	a, b := newPipe(t.Context())
	go func() { _ = b.Send(&api.Envelope{}) }()
	err := newSession(time.Minute).run(a, func(*api.Envelope) { panic("on purpose") })
	if err == nil || !strings.Contains(err.Error(), "on purpose") {
		t.Errorf("the session ended with %v, want the panic", err)
	}
}
