package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/patience"
)

// Stream is either end of a session, as gRPC has it.
type Stream interface {
	Send(*api.Envelope) error
	Recv() (*api.Envelope, error)
}

// session is the control stream of one migration. What is sent leaves in order and never makes the
// sender wait; that it is lost is told once, by the error of run. Both ends say something now and
// then although there is nothing to say, because a link that breaks tells nobody: a container may
// be frozen meanwhile, so neither can wait as long as TCP does.
type session struct {
	out     chan *api.Envelope
	once    sync.Once
	gone    chan struct{}
	heard   atomic.Bool   // the peer has said something
	silence time.Duration // after which the peer counts as lost
}

// outboxSize is more than a migration ever says in one session.
const outboxSize = 64

// errSilent says that the peer is there no more, or the way to it.
var errSilent = errors.New("the other node was silent")

func newSession(silence time.Duration) *session {
	return &session{out: make(chan *api.Envelope, outboxSize), gone: make(chan struct{}), silence: silence}
}

// send queues an envelope. On a session that is lost, or whose peer has stopped reading, it is
// dropped: the machines repeat what matters.
func (s *session) send(envelope *api.Envelope) {
	select {
	case s.out <- envelope:
	default:
	}
}

// onLoss calls cancel when the session has ended, unless ctx ends first.
func (s *session) onLoss(ctx context.Context, cancel func()) {
	if patience.UntilClosed(ctx, s.gone) == nil {
		cancel()
	}
}

func (s *session) close() { s.once.Do(func() { close(s.gone) }) }

// lingerAtMost bounds how long the end of a session waits for the peer to have read what was said last.
const lingerAtMost = 5 * time.Second

// run passes envelopes on until either end breaks the session, or close is called here.
func (s *session) run(stream Stream, receive func(*api.Envelope)) error {
	silent := make(chan struct{})
	watchdog := time.AfterFunc(s.silence, func() { close(silent) })
	defer watchdog.Stop()
	written := guard.Go(func() error { return s.write(stream) })
	received := guard.Go(func() error {
		return readAll(stream, func(envelope *api.Envelope) {
			if watchdog.Stop() {
				watchdog.Reset(s.silence)
			}
			s.heard.Store(true)
			receive(envelope)
		})
	})
	defer s.close()
	select {
	case <-silent:
		return fmt.Errorf("%w for %s", errSilent, s.silence)
	case err := <-received:
		if errors.Is(err, io.EOF) {
			return errors.New("the peer ended the session")
		}
		return err
	case err := <-written:
		if client, ok := stream.(interface{ CloseSend() error }); ok && err == nil {
			return linger(client.CloseSend(), received)
		}
		return err
	}
}

// linger waits until the peer has ended its half too: a stream that is cancelled loses what has not
// been read.
func linger(err error, received <-chan error) error {
	timer := time.NewTimer(lingerAtMost)
	defer timer.Stop()
	select {
	case ended := <-received:
		if errors.Is(ended, io.EOF) {
			return err
		}
		return errors.Join(err, ended)
	case <-timer.C:
		return err
	}
}

func readAll(stream Stream, receive func(*api.Envelope)) error {
	for {
		envelope, err := stream.Recv()
		if err != nil {
			return err
		}
		receive(envelope)
	}
}

// write sends what is queued; when the session is closed, what was queued before still leaves.
func (s *session) write(stream Stream) error {
	alive := time.NewTicker(max(s.silence/signsOfLife, time.Millisecond))
	defer alive.Stop()
	for {
		var envelope *api.Envelope
		select {
		case envelope = <-s.out:
		default:
			select {
			case envelope = <-s.out:
			case <-alive.C:
				envelope = &api.Envelope{}
			case <-s.gone:
				if len(s.out) == 0 {
					return nil
				}
				continue
			}
		}
		if err := stream.Send(envelope); err != nil {
			return err
		}
	}
}

// signsOfLife are given in the time after which silence counts as loss: some may be late.
const signsOfLife = 5
