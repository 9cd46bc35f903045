package stream

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/guard"
)

const (
	// aheadSeconds is how long the data in the kernel takes to leave: little, because later decisions wait
	// behind it. A Batch is as much again. On a machine that is too busy to wake up in time it grows, up to
	// mostAheadSeconds, and shrinks again by aheadDecay each time.
	aheadSeconds     = 0.004
	mostAheadSeconds = 0.024
	aheadGrowth      = 1.5
	aheadDecay       = 0.998
	leastAhead       = 4 << 10
	mostAhead        = 2 << 20
	// pauseSeconds without a write is a pause: then an empty queue is no surprise.
	pauseSeconds = 0.1
	// leastBatch is a page with its headers.
	leastBatch = 4<<10 + 256
	mostBatch  = 256 << 10
	mostSwell  = 16
	// longestNap is the longest time between two checks for room.
	longestNap = 20 * time.Millisecond
)

// paced is a connection whose rate can be set; wire.Conn is one.
type paced interface {
	transporter
	Pace(bitsPerSecond float64) error
	Steady() error
}

// pacing keeps a session polite.
type pacing struct {
	conn  paced
	rate  atomic.Uint64 // bytes per second, as bits of a float64
	swell atomic.Uint64 // how much larger content is than what is sent of it, the same way

	// The following belong to the writing goroutine.
	ahead float64 // seconds
	wrote time.Time
}

// bePolite starts pacing the session.
func (s *Session) bePolite(expectedBitsPerSecond float64) error {
	conn, ok := s.conn.(paced)
	if !ok {
		return fmt.Errorf("a polite stream needs a connection that can be paced, not a %T", s.conn)
	}
	law := newPacer(expectedBitsPerSecond / 8)
	p := &pacing{conn: conn, ahead: aheadSeconds}
	p.swell.Store(math.Float64bits(1))
	if err := conn.Steady(); err != nil {
		return fmt.Errorf("make a stream polite: %w", err)
	}
	if err := p.set(law.rate); err != nil {
		return fmt.Errorf("make a stream polite: %w", err)
	}
	s.pacing = p
	guard.Go(func() error { // on an error the rate stays as it is
		p.follow(law, s.done)
		return nil
	})
	return nil
}

func (p *pacing) set(rate float64) error {
	p.rate.Store(math.Float64bits(rate))
	return p.conn.Pace(rate * 8)
}

func (p *pacing) get() float64 { return math.Float64frombits(p.rate.Load()) }

// follow lets the control law steer until the session ends.
func (p *pacing) follow(law *pacer, done <-chan struct{}) {
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-timer.C:
		}
		t, err := p.conn.Transport()
		if err != nil {
			return // the connection is gone, which its user notices
		}
		sample := paceSample{
			at: time.Since(start), rtt: t.RTT, delivered: t.DeliveredBytes, sent: t.SentBytes,
			resent: t.ResentBytes,
			taken:  t.DeliveryBitsPerSecond / 8, dry: t.UnsentBytes == 0,
		}
		if law.see(sample) && p.set(law.rate) != nil {
			return
		}
		timer.Reset(law.interval())
	}
}

// room waits until the kernel has little unsent data. TCP_NOTSENT_LOWAT would do that, but it counts only
// when the kernel begins another buffer of 64 KiB, which is 50 ms at 10 Mbit/s.
func (p *pacing) room(done <-chan struct{}) bool {
	defer func() { p.wrote = time.Now() }()
	for first := true; ; first = false {
		t, err := p.conn.Transport()
		if first {
			p.adjust(t.UnsentBytes)
		}
		rate := p.get()
		over := float64(t.UnsentBytes) - min(max(rate*p.ahead, leastAhead), mostAhead)
		if err != nil || over <= 0 {
			return true
		}
		nap := min(time.Duration((over+1)/rate*float64(time.Second)), longestNap)
		timer := time.NewTimer(max(nap, 100*time.Microsecond))
		select {
		case <-timer.C:
		case <-done:
			timer.Stop()
			return false
		}
	}
}

// adjust keeps more data in the kernel if it had run dry.
func (p *pacing) adjust(unsent int64) {
	p.ahead = max(p.ahead*aheadDecay, aheadSeconds)
	if unsent == 0 && time.Since(p.wrote).Seconds() < pauseSeconds {
		p.ahead = min(p.ahead*aheadGrowth, mostAheadSeconds)
	}
}

// sent records the compression of a chunk.
func (p *pacing) sent(raw, wire int) {
	const weight = 1.0 / 8
	swell := math.Float64frombits(p.swell.Load())
	swell += weight * (min(max(float64(raw)/float64(wire), 1), mostSwell) - swell)
	p.swell.Store(math.Float64bits(swell))
}

// pieceBytes is how much is passed to the kernel at once, at a rate in bytes per second.
func pieceBytes(rate float64) float64 { return min(max(rate*aheadSeconds, leastBatch), mostBatch) }

// batch returns how much content that is.
func (p *pacing) batch(rate float64) int {
	return int(min(pieceBytes(rate)*math.Float64frombits(p.swell.Load()), mostBatch))
}

// Pace returns the maximum rate of a polite session now, in bits per second; 0: it is not polite.
//
// A polite session watches the round trip of its connection and sends as fast as it can without a queue in
// front of the bottleneck. So the link is busy, and other connections' data waits a millisecond or two, not
// the tenths of a second that a router can buffer. The session also keeps almost nothing in the kernel, so
// what to send next can be decided late. A limit (SetRate) applies as well.
func (s *Session) Pace() float64 {
	if s.pacing == nil {
		return 0
	}
	pace := s.pacing.get() * 8
	if limit := s.limiter.bitsPerSecond(); limit > 0 {
		pace = min(pace, limit)
	}
	return pace
}

// Batch returns how many bytes are best written to a polite session and flushed at once: what leaves in
// about 4 ms, at least a page, and more if it compresses well. 0: the session is not polite, and any amount
// will do.
func (s *Session) Batch() int {
	if s.pacing == nil {
		return 0
	}
	return s.pacing.batch(s.Pace() / 8)
}
