package stream

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Options of a session.
type Options struct {
	// Codec is the first codec; SetCodec changes it.
	Codec Codec
	// Limiter limits what this side sends; nil: a Limiter of the session's own, without a limit.
	Limiter *Limiter
	// Workers is the number of goroutines that compress and decompress; 0: one per core, at most 4.
	Workers int
	// StallTimeout ends a session whose peer stops in the middle of a frame; 0: 30 s. Between frames a peer
	// may be silent for any time.
	StallTimeout time.Duration
	// Beside is another session of this side whose codecs' tables this one shares; nil: it has its own.
	// Sessions that share tables gather less in a chunk, because there are several of them.
	Beside *Session
	// Urgent sessions do not wait for the limiter while other sessions share it and can wait in their
	// place.
	Urgent bool
	// Polite sessions leave the path nearly empty for others: see Pace.
	Polite bool
	// Eager sessions do not wait for the peer's answer to their greeting. They send their data right behind
	// it, a round trip earlier. A refusal then ends the session, and its users get it as an error. It is
	// for sessions that this side opens.
	Eager bool
	// ExpectedBitsPerSecond is the expected bandwidth of the link, with which a polite session begins; 0:
	// unknown. The session then finds out, which fills the link for a moment.
	ExpectedBitsPerSecond float64
}

const (
	maxWorkers   = 4
	stallTimeout = 30 * time.Second
	// abortTimeout bounds how long reporting a reason to the peer may take.
	abortTimeout = 2 * time.Second
)

// Session is one data connection. One goroutine may write (Begin, Write, End, Flush, Finish) while another
// reads (Next and the section that it returns); everything else may be called at any time by any goroutine.
type Session struct {
	conn       net.Conn
	limiter    *Limiter
	counters   *counters
	compressor *compressor
	zstds      *zstd.Decoder
	writer     *writer
	reader     *reader
	waiters    waiters
	meter      meter
	mostChunk  int
	urgent     bool
	pacing     *pacing // nil: not polite

	done     chan struct{} // closed when the session has failed or was closed
	failOnce sync.Once
	err      error // the reason; set before done is closed
}

// newSession begins a session after the greetings; if unanswered, without the peer's answer.
func newSession(conn net.Conn, o Options, unanswered bool) (*Session, error) {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	o.Workers = min(o.Workers, maxWorkers)
	if o.Limiter == nil {
		o.Limiter = &Limiter{}
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = stallTimeout
	}
	zstds, err := newDecompressor(o.Workers)
	if err != nil {
		return nil, fmt.Errorf("prepare decompression: %w", err)
	}
	s := &Session{
		conn: conn, limiter: o.Limiter, counters: newCounters(), compressor: &compressor{workers: o.Workers},
		zstds: zstds, mostChunk: MaxFrame, urgent: o.Urgent, done: make(chan struct{}),
	}
	if o.Beside != nil {
		s.compressor, s.mostChunk = o.Beside.compressor, smallChunk
	}
	s.writer = newWriter(s, o.Workers)
	s.reader = newReader(s, o.StallTimeout)
	if o.Polite {
		if err := s.bePolite(o.ExpectedBitsPerSecond); err != nil {
			conn.Close()
			return nil, err
		}
	}
	if err := s.SetCodec(o.Codec); err != nil {
		return nil, err
	}
	go s.writer.send()
	go s.reader.receive(unanswered)
	return s, nil
}

// SetCodec sets the codec for everything that is sent from now on.
func (s *Session) SetCodec(codec Codec) error {
	if codec >= codecsEnd {
		return fmt.Errorf("unknown codec %d", codec)
	}
	if err := s.compressor.prepare(codec); err != nil {
		return err
	}
	s.writer.codec.Store(uint32(codec))
	return nil
}

// Codec returns the present codec.
func (s *Session) Codec() Codec { return Codec(s.writer.codec.Load()) }

// SetRate limits what this side sends, in bits per second on the wire; 0: no limit. It takes effect at
// once, and for all sessions that share the limiter.
func (s *Session) SetRate(bitsPerSecond float64) { s.limiter.SetRate(bitsPerSecond) }

// Counters returns how much has been transferred so far.
func (s *Session) Counters() Counters { return s.counters.snapshot() }

// Abort ends the session and reports the reason to the peer, if that is still possible.
func (s *Session) Abort(reason string) error {
	s.tell(reason)
	return s.Close()
}

// tell reports to the peer why the session is about to end.
func (s *Session) tell(reason string) {
	told := make(chan struct{})
	timer := time.NewTimer(abortTimeout)
	defer timer.Stop()
	select {
	case s.writer.urgent <- outgoing{frames: [][]byte{controlFrame(frameAbort, []byte(clip(reason)))},
		done: told}:
		select {
		case <-told:
		case <-s.done:
		case <-timer.C:
		}
	case <-s.done:
	case <-timer.C:
	}
}

// Close ends the session. Unflushed data is lost: call Finish first, and wait for the peer's confirmation
// to be sure that it has everything. The error is always nil: earlier calls have reported errors.
func (s *Session) Close() error {
	s.fail(ErrClosed)
	return nil
}

// fail ends the session for a reason; the first one counts.
func (s *Session) fail(err error) {
	s.failOnce.Do(func() {
		s.err = err
		close(s.done)
		s.conn.Close()
	})
}

// failure returns why the session has ended; it must have.
func (s *Session) failure() error {
	<-s.done
	return s.err
}

// breach ends a session whose peer broke the protocol, and tells the peer.
func (s *Session) breach(err error) {
	s.tell(err.Error())
	s.fail(err)
}

// waiters are the callers that wait for an answer of the peer, by the number of the query.
type waiters struct {
	mu    sync.Mutex
	last  uint64
	waits map[uint64]chan []byte
}

func (w *waiters) add() (uint64, chan []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits == nil {
		w.waits = map[uint64]chan []byte{}
	}
	w.last++
	answer := make(chan []byte, 1)
	w.waits[w.last] = answer
	return w.last, answer
}

func (w *waiters) remove(number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waits, number)
}

// answer passes an answer to its waiter. Answers without a waiter are dropped: their query has timed out.
func (w *waiters) answer(number uint64, payload []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if answer := w.waits[number]; answer != nil {
		answer <- payload
		delete(w.waits, number)
	}
}

// question sends frames that the peer answers. The returned function waits for the answer, and must be
// called.
func (s *Session) question(ctx context.Context,
	frames func(number uint64) [][]byte) (wait func() ([]byte, error)) {
	number, answer := s.waiters.add()
	failed := s.sendNow(ctx, frames(number))
	return func() ([]byte, error) {
		defer s.waiters.remove(number)
		if failed != nil {
			return nil, failed
		}
		return s.await(ctx, answer)
	}
}

// sendNow sends frames together, before everything that waits to be sent.
func (s *Session) sendNow(ctx context.Context, frames [][]byte) error {
	select {
	case s.writer.urgent <- outgoing{frames: frames}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.done:
		return s.failure()
	}
}

// await waits for an answer of the peer.
func (s *Session) await(ctx context.Context, answer <-chan []byte) ([]byte, error) {
	select {
	case payload := <-answer:
		return payload, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.reader.ended:
		return nil, s.reader.err
	}
}
