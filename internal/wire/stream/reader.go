package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/godwit/godwit/internal/guard"
)

// readAhead is how many frames are received and decompressed in advance.
const readAhead = 4

// incoming is a frame of records on its way to the reader.
type incoming struct {
	header header
	wire   []byte
	raw    []byte
	err    error
	ready  chan struct{} // one token when raw or err is there
}

type reader struct {
	session *Session
	stall   time.Duration
	free    chan *incoming
	frames  chan *incoming // in order; closed at the end
	ended   chan struct{}  // closed when nothing more will be received
	err     error          // why; set before
	trains  trains

	// The following fields belong to the goroutine that calls Next.
	current  *incoming
	rest     []byte // of current's records
	shares   []share
	kinds    map[string]bool
	open     bool
	kind     string
	name     string
	data     []byte // of a data record, not yet read
	total    uint64
	sum      uint32
	sections uint64
	failed   error
}

func newReader(s *Session, stall time.Duration) *reader {
	r := &reader{
		session: s, stall: stall, free: make(chan *incoming, readAhead),
		frames: make(chan *incoming, readAhead),
		ended:  make(chan struct{}), kinds: map[string]bool{},
	}
	for range readAhead {
		r.free <- &incoming{ready: make(chan struct{}, 1)}
	}
	return r
}

// receive is the only goroutine that reads from the connection.
func (r *reader) receive(unanswered bool) {
	var err error
	if unanswered {
		err = guard.Do(r.answer)
	}
	if err == nil {
		err = guard.Do(r.receiveAll)
	}
	var peer *PeerError
	select {
	case <-r.session.done:
		err = r.session.err
	default:
		if errors.As(err, &peer) {
			defer r.session.fail(err) // the peer will not read what is still to be written
		}
		if errors.Is(err, ErrProtocol) {
			defer r.session.breach(err)
		}
	}
	r.err = err
	close(r.ended)
	close(r.frames)
}

// answer takes the answer to the greeting. Without an answer, or after a refusal, nobody reads what this
// side sends.
func (r *reader) answer() error {
	conn := r.session.conn
	finish := deadline(context.Background(), conn)
	err := finish(receiveAnswer(conn))
	if err == nil {
		return nil
	}
	err = openError(conn, err)
	r.session.fail(err)
	return err
}

func (r *reader) receiveAll() error {
	var head [headerBytes]byte
	for {
		if err := r.read(head[:], true); err != nil {
			return err
		}
		h, err := parseHeader(head[:])
		if err != nil {
			return err
		}
		if h.kind == frameRecords {
			err = r.receiveRecords(h)
		} else {
			err = r.receiveControl(h)
		}
		if err != nil {
			return err
		}
		r.session.counters.read(headerBytes + h.wire)
	}
}

// read fills b. At the start of a frame the peer may take any time, but not later.
func (r *reader) read(b []byte, start bool) error {
	conn := r.session.conn
	for got := 0; got < len(b); {
		limit := time.Time{}
		if !start || got > 0 {
			limit = time.Now().Add(r.stall)
		}
		if err := conn.SetReadDeadline(limit); err != nil {
			return readError(err, start && got == 0)
		}
		n, err := conn.Read(b[got:])
		got += n
		if err != nil && got < len(b) {
			return readError(err, start && got == 0)
		}
	}
	return nil
}

func readError(err error, between bool) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrStalled
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		if between {
			return fmt.Errorf("%w, between two frames", ErrTruncated)
		}
		return fmt.Errorf("%w, inside a frame", ErrTruncated)
	}
	return fmt.Errorf("%w: %w", ErrTruncated, err)
}

func (r *reader) receiveRecords(h header) error {
	var f *incoming
	select {
	case f = <-r.free:
	case <-r.session.done:
		return r.session.failure()
	}
	f.header, f.err = h, nil
	f.raw = sized(f.raw, h.raw)
	if h.codec == None {
		if err := r.read(f.raw, false); err != nil {
			return err
		}
		f.ready <- struct{}{}
	} else {
		f.wire = sized(f.wire, h.wire)
		if err := r.read(f.wire, false); err != nil {
			return err
		}
		go func() { // at most readAhead of them
			f.err = guard.Do(func() error {
				return decompress(r.session.zstds, h.codec, f.raw, f.wire)
			})
			f.ready <- struct{}{}
		}()
	}
	r.frames <- f // there is room for all that were free
	return nil
}

// sized returns a buffer of this length, and reallocates b if it must grow.
func sized(b []byte, length int) []byte {
	if cap(b) < length {
		return make([]byte, length)
	}
	return b[:length]
}

func (r *reader) receiveControl(h header) error {
	payload := make([]byte, h.wire)
	if err := r.read(payload, false); err != nil {
		return err
	}
	now := time.Now()
	switch h.kind {
	case framePing:
		if len(payload) != pingBytes {
			return protocolError("a ping of %d bytes", len(payload))
		}
		r.reply(pong(payload, now))
	case frameProbe:
		report, err := r.trains.probe(payload, now)
		if err != nil {
			return err
		}
		if report != nil {
			r.reply(report)
		}
	case frameAbort:
		return &PeerError{Reason: string(payload)}
	default: // framePong, frameReport
		if len(payload) < 8 {
			return protocolError("an answer of %d bytes", len(payload))
		}
		r.session.waiters.answer(binary.BigEndian.Uint64(payload), payload[8:])
	}
	return nil
}

// reply sends an answer unless too many answers are waiting to be sent. If both sides waited here, neither
// would ever continue.
func (r *reader) reply(frame []byte) {
	select {
	case r.session.writer.urgent <- outgoing{frames: [][]byte{frame}}:
	default:
	}
}

// Section is a section that the peer began. Its kind and name come from the peer: check them before using
// them as a path.
type Section struct {
	Kind string
	Name string
	// Reader returns the content, and io.EOF only if all of it has arrived undamaged.
	io.Reader
}

// Next waits for the peer's next section, and skips the unread rest of the previous one. After the final
// marker it returns io.EOF; any other end of the connection is an error.
func (s *Session) Next() (Section, error) {
	r := s.reader
	if r.failed != nil {
		return Section{}, r.failed
	}
	if r.open {
		if _, err := (sectionReader{r, r.sections}).WriteTo(io.Discard); err != nil {
			return Section{}, err
		}
	}
	rec, err := r.next()
	switch {
	case err != nil:
	case rec.kind == recordBegin:
		err = r.begin(rec)
	case rec.kind == recordFinal:
		err = r.final(rec)
	default:
		err = protocolError("data outside a section")
	}
	if err != nil {
		return Section{}, r.stop(err)
	}
	return Section{Kind: r.kind, Name: r.name, Reader: sectionReader{r, r.sections}}, nil
}

func (r *reader) begin(rec record) error {
	r.kinds[rec.section] = true
	if len(r.kinds) > maxKinds {
		return protocolError("more than %d kinds of sections", maxKinds)
	}
	r.open, r.kind, r.name, r.total, r.sum = true, rec.section, rec.name, 0, 0
	r.sections++
	r.shares = addShare(r.shares, r.kind, 0, beginBytes+len(rec.section)+len(rec.name))
	return nil
}

// final checks the final marker and returns io.EOF if everything is correct.
func (r *reader) final(rec record) error {
	if len(r.rest) > 0 {
		return protocolError("%d bytes after the final marker", len(r.rest))
	}
	if rec.total != r.sections {
		return fmt.Errorf("%w: %d sections arrived of %d", ErrDamaged, r.sections, rec.total)
	}
	r.release()
	return io.EOF
}

// stop records why nothing more can be read, and ends the session if the peer is at fault.
func (r *reader) stop(err error) error {
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrDamaged) {
		r.session.breach(err)
	}
	r.failed = err
	return err
}

// next returns the next record, from the next frame if necessary.
func (r *reader) next() (record, error) {
	if len(r.rest) == 0 {
		r.release()
		f, ok := <-r.frames
		if !ok {
			return record{}, r.err
		}
		<-f.ready
		if f.err != nil {
			return record{}, f.err
		}
		r.current, r.rest = f, f.raw
	}
	rec, rest, err := parseRecord(r.rest)
	r.rest = rest
	return rec, err
}

// release returns a frame that has been read.
func (r *reader) release() {
	if r.current == nil {
		return
	}
	r.session.counters.received(r.shares, headerBytes+r.current.header.wire)
	r.shares = r.shares[:0]
	r.free <- r.current
	r.current = nil
}

// advance makes data available, or returns io.EOF at the end of the section.
func (r *reader) advance() error {
	for len(r.data) == 0 {
		if !r.open {
			return io.EOF
		}
		rec, err := r.next()
		switch {
		case err != nil:
		case rec.kind == recordData:
			r.data = rec.data
			r.total += uint64(len(rec.data))
			r.sum = crc32.Update(r.sum, castagnoli(), rec.data)
			r.shares = addShare(r.shares, r.kind, len(rec.data), dataBytes+len(rec.data))
		case rec.kind == recordEnd:
			r.open = false
			r.shares = addShare(r.shares, r.kind, 0, endBytes)
			if rec.total != r.total || rec.sum != r.sum {
				err = fmt.Errorf("%w: section %s %q has %d bytes with sum %08x; sent were %d with sum %08x",
					ErrDamaged, r.kind, r.name, r.total, r.sum, rec.total, rec.sum)
			}
		default:
			err = protocolError("section %s %q does not end before another record", r.kind, r.name)
		}
		if err != nil {
			return r.stop(fmt.Errorf("section %s %q after %d bytes: %w", r.kind, r.name, r.total, err))
		}
	}
	return nil
}

// sectionReader reads one section, while it is the one that Next last returned.
type sectionReader struct {
	r      *reader
	number uint64
}

func (s sectionReader) advance() error {
	if s.number != s.r.sections {
		return fmt.Errorf("read a section after the next was asked for: %w", ErrNoSection)
	}
	if s.r.failed != nil {
		return s.r.failed
	}
	return s.r.advance()
}

// Read implements io.Reader.
func (s sectionReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.advance(); err != nil {
		return 0, err
	}
	n := copy(p, s.r.data)
	s.r.data = s.r.data[n:]
	return n, nil
}

// WriteTo implements io.WriterTo, without a copy between.
func (s sectionReader) WriteTo(w io.Writer) (int64, error) {
	var written int64
	for {
		if err := s.advance(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return written, err
		}
		n, err := w.Write(s.r.data)
		written += int64(n)
		s.r.data = s.r.data[n:]
		if err != nil {
			return written, err
		}
	}
}
