package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/guard"
)

const (
	// minChunk is the size at which a chunk leaves if nothing else is in flight: small enough to start
	// early, and large enough to compress nearly as well as more.
	minChunk = 64 << 10
	// minCompress: less is not worth the header of a codec.
	minCompress = 128
	// limitedPiece is how much leaves at once if a rate is set.
	limitedPiece = 16 << 10
	// leastPiece is how much leaves at once at a low rate: about a segment.
	leastPiece = 1400
	// pieceSeconds is how long a piece takes at the rate, between these two sizes.
	pieceSeconds = 0.01
	// urgentQueue bounds the queue of control frames. A peer that sends queries faster than it reads loses
	// answers, and does not cost us memory.
	urgentQueue = 16
)

// ErrNoSection means that Write or End was called outside a section, Begin inside one, or anything after
// Finish.
var ErrNoSection = errors.New("wrong order of calls")

// chunk is a frame in the making.
type chunk struct {
	raw    []byte // room for a header, then records
	wire   []byte // the same compressed
	out    []byte // the one of them to send
	codec  Codec
	limit  int // of raw
	shares []share
	final  bool
	ready  chan struct{} // one token when out is there
}

// outgoing is a task of the sender: a chunk, complete frames, or only a callback.
type outgoing struct {
	chunk  *chunk
	frames [][]byte
	done   chan struct{} // closed when all before it has left
}

type writer struct {
	session *Session
	codec   atomic.Uint32
	free    chan *chunk   // its capacity bounds the memory
	queue   chan outgoing // in order
	urgent  chan outgoing // overtakes the queue
	pending atomic.Int32  // chunks given to the sender that have not left
	left    atomic.Bool   // the end of the frame with the final marker may have left

	changed   func(from, to Codec) // nil: the codec stays as set
	wantTrial atomic.Bool

	mu       sync.Mutex
	current  *chunk
	dataAt   int // offset of the open data record's length in current; 0: none is open
	open     bool
	finished bool
	kind     string
	total    uint64
	sum      uint32
	sections uint64
}

func newWriter(s *Session, workers int) *writer {
	chunks := workers + 2 // one being filled, one being sent
	w := &writer{
		session: s, free: make(chan *chunk, chunks), queue: make(chan outgoing, chunks+1),
		urgent: make(chan outgoing, urgentQueue),
	}
	for range chunks {
		w.free <- &chunk{ready: make(chan struct{}, 1)}
	}
	return w
}

// Begin starts a section. Sections do not nest.
func (s *Session) Begin(kind, name string) error {
	if kind == "" || len(kind) > MaxKind || len(name) > MaxName {
		return fmt.Errorf("section %q: a kind has 1 to %d bytes, and a name at most %d", kind, MaxKind,
			MaxName)
	}
	w := s.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open || w.finished {
		return fmt.Errorf("begin section %s %q: %w", kind, name, ErrNoSection)
	}
	size := beginBytes + len(kind) + len(name)
	if err := w.room(size); err != nil {
		return err
	}
	w.open, w.kind, w.total, w.sum = true, kind, 0, 0
	w.sections++
	w.current.raw = appendBegin(w.current.raw, kind, name)
	w.current.shares = addShare(w.current.shares, kind, 0, size)
	return nil
}

// Write adds to the section. It returns when p has been copied, possibly before it has left.
func (s *Session) Write(p []byte) (int, error) {
	w := s.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.open {
		return 0, fmt.Errorf("write %d bytes: %w", len(p), ErrNoSection)
	}
	written := 0
	for len(p) > 0 {
		n, err := w.data(p)
		if err != nil {
			return written, err
		}
		written, p = written+n, p[n:]
	}
	return written, w.submitIfIdle()
}

// data copies as much of p as fits into the present chunk.
func (w *writer) data(p []byte) (int, error) {
	if err := w.room(dataBytes + 1); err != nil {
		return 0, err
	}
	c, extra := w.current, 0
	if w.dataAt == 0 {
		w.dataAt = len(c.raw) + 1
		c.raw = append(c.raw, byte(recordData), 0, 0, 0, 0)
		extra = dataBytes
	}
	n := min(len(p), c.limit-len(c.raw))
	c.raw = append(c.raw, p[:n]...)
	length := binary.BigEndian.Uint32(c.raw[w.dataAt:])
	binary.BigEndian.PutUint32(c.raw[w.dataAt:], length+uint32(n))
	c.shares = addShare(c.shares, w.kind, n, n+extra)
	w.total += uint64(n)
	w.sum = crc32.Update(w.sum, castagnoli(), p[:n])
	return n, nil
}

// End ends the section. Its end may leave later, together with later sections.
func (s *Session) End() error {
	w := s.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.open {
		return fmt.Errorf("end a section: %w", ErrNoSection)
	}
	if err := w.room(endBytes); err != nil {
		return err
	}
	w.open, w.dataAt = false, 0
	w.current.raw = appendEnd(w.current.raw, w.total, w.sum)
	w.current.shares = addShare(w.current.shares, w.kind, 0, endBytes)
	return w.submitIfIdle()
}

// Finish sends everything that is left and the final marker, in one frame if it fits, and returns when the
// kernel has it. Before Finish is called the peer cannot see the marker; FinalMayHaveLeft reports whether
// it could have if Finish fails.
func (s *Session) Finish() error {
	w := s.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open || w.finished {
		return fmt.Errorf("finish the stream: %w", ErrNoSection)
	}
	if err := w.room(finalBytes); err != nil {
		return err
	}
	w.finished = true
	w.current.final = true
	w.current.raw = appendFinal(w.current.raw, w.sections)
	return w.flush()
}

// FinalMayHaveLeft reports whether the peer may have the final marker, or may still get it. While it is
// false, and once the session has ended, the peer certainly never will.
func (s *Session) FinalMayHaveLeft() bool { return s.writer.left.Load() }

// Flush sends what has been written so far and returns when the kernel has it.
func (s *Session) Flush() error {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return s.writer.flush()
}

// Push sends what has been written so far, and does not wait for it.
func (s *Session) Push() error {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return s.writer.submit()
}

func (w *writer) flush() error {
	if err := w.submit(); err != nil {
		return err
	}
	done := make(chan struct{})
	select {
	case w.queue <- outgoing{done: done}:
	case <-w.session.done:
		return w.session.failure()
	}
	select {
	case <-done:
		return nil
	case <-w.session.done:
		return w.session.failure()
	}
}

// room makes sure that the present chunk can take a record of this size.
func (w *writer) room(size int) error {
	if w.current != nil && len(w.current.raw)+size > w.current.limit {
		if err := w.submit(); err != nil {
			return err
		}
	}
	if w.current != nil {
		return nil
	}
	select {
	case w.current = <-w.free:
	case <-w.session.done:
		return w.session.failure()
	}
	c := w.current
	c.codec, c.limit = Codec(w.codec.Load()), headerBytes+minChunk
	if w.session.pacing != nil {
		c.limit = headerBytes + w.session.pacing.batch(w.session.pacing.get())
	} else if w.pending.Load() > 0 {
		c.limit = headerBytes + min(c.codec.chunkBytes(), w.session.mostChunk)
	}
	c.raw, c.shares, c.final = append(c.raw[:0], make([]byte, headerBytes)...), c.shares[:0], false
	return nil
}

func (w *writer) submitIfIdle() error {
	if w.current != nil && len(w.current.raw) >= headerBytes+minChunk && w.pending.Load() == 0 {
		return w.submit()
	}
	return nil
}

// submit passes the present chunk on to be compressed and sent.
func (w *writer) submit() error {
	c := w.current
	if c == nil {
		return nil
	}
	w.current, w.dataAt = nil, 0
	w.pending.Add(1)
	if c.codec == None {
		w.pack(c)
	} else {
		go w.pack(c) // at most as many as there are chunks
	}
	select {
	case w.queue <- outgoing{chunk: c}:
		return nil
	case <-w.session.done:
		return w.session.failure()
	}
}

// pack makes a chunk's frame. A panic, such as a bug in a codec, ends the session.
func (w *writer) pack(c *chunk) {
	err := guard.Do(func() error { w.frame(c); return nil })
	if err != nil {
		w.session.fail(err)
		return
	}
	c.ready <- struct{}{}
}

func (w *writer) frame(c *chunk) {
	raw := len(c.raw) - headerBytes
	w.tryCodec(c.raw[headerBytes:])
	c.wire = append(c.wire[:0], make([]byte, headerBytes)...)
	start := time.Now()
	wire, worth := w.session.compressor.compress(c.codec, c.wire, c.raw[headerBytes:])
	c.wire = wire
	if c.codec != None {
		size := raw
		if worth {
			size = len(wire) - headerBytes
		}
		w.session.meter.packed(c.codec, raw, size, time.Since(start))
	}
	if worth {
		header{kind: frameRecords, codec: c.codec, wire: len(wire) - headerBytes, raw: raw}.put(wire)
		c.out = wire
	} else {
		header{kind: frameRecords, wire: raw, raw: raw}.put(c.raw)
		c.out = c.raw
	}
}

// send is the only goroutine that writes to the connection.
func (w *writer) send() {
	for {
		var item outgoing
		select {
		case item = <-w.urgent:
		default:
			select {
			case item = <-w.urgent:
			case item = <-w.queue:
			case <-w.session.done:
				return
			}
		}
		err := guard.Do(func() error { return w.sendItem(item) })
		if err != nil {
			w.session.fail(w.explain(err))
			return
		}
		if item.done != nil {
			close(item.done)
		}
	}
}

func (w *writer) sendItem(item outgoing) error {
	if err := w.writeFrames(item.frames); err != nil {
		return err
	}
	c := item.chunk
	if c == nil {
		return nil
	}
	start := time.Now()
	select {
	case <-c.ready:
	case <-w.session.done: // it could not be packed
		return w.session.failure()
	}
	packed := time.Now()
	if err := w.writeChunk(c); err != nil {
		return err
	}
	sent := time.Now()
	w.adapt(w.session.meter.sent(len(c.out), packed.Sub(start), sent.Sub(packed), sent))
	w.session.counters.sent(c.shares, len(c.out))
	if w.session.pacing != nil {
		w.session.pacing.sent(len(c.raw), len(c.out))
	}
	w.pending.Add(-1)
	w.free <- c
	return nil
}

// batcher is a connection that can send several parts at once and still lets the peer read each as it
// arrives; wire.Conn is one. Written one by one, small parts would leave in half-empty segments, and the
// congestion window counts segments.
type batcher interface {
	WriteAll(parts [][]byte) (int64, error)
}

// writeFrames sends control frames.
func (w *writer) writeFrames(frames [][]byte) error {
	for _, frame := range frames {
		stamp(frame)
	}
	if conn, ok := w.session.conn.(batcher); ok && w.session.limiter.piece() == 0 {
		n, err := conn.WriteAll(frames)
		w.session.counters.wrote(int(n))
		return err
	}
	for _, frame := range frames {
		if err := w.write(frame); err != nil {
			return err
		}
	}
	return nil
}

// writeChunk sends a chunk. The final chunk ends with the marker. Its last bytes are written separately:
// the peer cannot use the frame without them, so until then the marker certainly has not left.
func (w *writer) writeChunk(c *chunk) error {
	if !c.final {
		return w.write(c.out)
	}
	last := max(0, len(c.out)-leastPiece)
	if err := w.write(c.out[:last]); err != nil {
		return err
	}
	w.left.Store(true)
	return w.write(c.out[last:])
}

// write gives bytes to the kernel: all at once, or as the limiter allows.
func (w *writer) write(b []byte) error {
	for len(b) > 0 {
		n := len(b)
		if w.session.pacing != nil {
			if !w.session.pacing.room(w.session.done) {
				return w.session.failure()
			}
			n = min(n, int(pieceBytes(w.session.pacing.get())))
		}
		if piece := w.session.limiter.piece(); piece > 0 {
			n = min(n, piece)
			if !w.session.limiter.take(n, w.session.urgent, w.session.done) {
				return w.session.failure()
			}
		}
		written, err := w.session.conn.Write(b[:n])
		w.session.counters.wrote(written)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// explain prefers what the peer said, which may be waiting to be read, over the broken pipe that it
// left behind.
func (w *writer) explain(err error) error {
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-w.session.reader.ended:
		var peer *PeerError
		if errors.As(w.session.reader.err, &peer) {
			return peer
		}
	case <-w.session.done:
	case <-timer.C:
	}
	return fmt.Errorf("%w: send: %w", ErrTruncated, err)
}
