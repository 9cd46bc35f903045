package stream

import (
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
)

const (
	// meterInterval is the time for which link and codec are watched before a decision.
	meterInterval = 250 * time.Millisecond
	// boundShare is the share of an interval, spent waiting for link or codec, that makes that one the
	// limit.
	boundShare = 0.5
	// trialBytes is how much of a chunk is compressed once more to try another codec, which costs at most 1
	// to 2 ms of one core in each interval.
	trialBytes = 128 << 10
)

// performance is the performance of a codec on this content and this machine.
type performance struct {
	bytesPerSecond float64 // raw, on one core; 0: not seen
	ratio          float64 // compressed size as a share of raw size
}

// meter watches what the writer waits for.
type meter struct {
	mu      sync.Mutex
	begun   time.Time
	wire    int
	writing time.Duration // in the connection, or waiting for the limiter
	packing time.Duration // for the codec
	link    float64       // bytes per second when the link was last the limit; 0: never
	codecs  [codecsEnd]performance
	trial   bool // one is under way
	next    int  // the next codec to try, if worthwhile
}

// verdict is the result of an interval.
type verdict struct {
	over   bool // the interval
	bound  bool // the link was the limit
	packed bool // the codec was
}

// sent records a frame, and how long the writer waited for its codec and for the link.
func (m *meter) sent(wire int, packing, writing time.Duration, now time.Time) verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun.IsZero() {
		m.begun = now.Add(-packing - writing)
	}
	m.wire, m.packing, m.writing = m.wire+wire, m.packing+packing, m.writing+writing
	all := now.Sub(m.begun)
	if all < meterInterval {
		return verdict{}
	}
	v := verdict{over: true, bound: m.writing.Seconds() > boundShare*all.Seconds(),
		packed: m.packing.Seconds() > boundShare*all.Seconds()}
	switch rate := float64(m.wire) / all.Seconds(); {
	case v.bound && m.link > 0:
		m.link = (m.link + float64(m.wire)/m.writing.Seconds()) / 2
	case v.bound:
		m.link = float64(m.wire) / m.writing.Seconds()
	case v.packed && m.link > 0: // the link may have become faster: step by step
		m.link = max(m.link, rate) * 1.1
	default:
		// a burst goes into the kernel's buffer, whatever the link's speed
		m.link = max(m.link, min(rate, m.link*2))
	}
	m.begun, m.wire, m.packing, m.writing = now, 0, 0, 0
	return v
}

// packed records the effect of a codec on a chunk.
func (m *meter) packed(codec Codec, raw, wire int, took time.Duration) {
	if raw < minChunk/2 || took <= 0 {
		return // too little to say
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := performance{bytesPerSecond: float64(raw) / took.Seconds(), ratio: float64(wire) / float64(raw)}
	if was := m.codecs[codec]; was.bytesPerSecond > 0 {
		const weight = 0.2
		seen.bytesPerSecond = was.bytesPerSecond + weight*(seen.bytesPerSecond-was.bytesPerSecond)
		seen.ratio = was.ratio + weight*(seen.ratio-was.ratio)
	}
	m.codecs[codec] = seen
}

// choose returns the best codec after an interval. More compression must pay, and of equal codecs the
// cheapest wins.
func (m *meter) choose(now Codec, v verdict, workers int) Codec {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !v.bound && !v.packed {
		return now // the supply is the limit: sending less would not be faster
	}
	if m.link == 0 {
		return max(now, 1) - 1 // the codec was the limit from the beginning
	}
	const worth, equal = 1.1, 0.99
	best := now
	for c := None; c < codecsEnd; c++ {
		if m.through(c, workers) > m.through(best, workers) {
			best = c
		}
	}
	if best > now && m.through(best, workers) < worth*m.through(now, workers) {
		best = now
	}
	for c := None; c < best; c++ {
		if m.through(c, workers) >= equal*m.through(best, workers) {
			return c
		}
	}
	return best
}

// through returns how many bytes of content per second a codec brings through the link; 0: never tried.
func (m *meter) through(c Codec, workers int) float64 {
	if c == None {
		return m.link
	}
	seen := m.codecs[c]
	if seen.bytesPerSecond == 0 {
		return 0
	}
	return min(m.link/max(seen.ratio, 1e-3), seen.bytesPerSecond*float64(workers))
}

// tryNext returns which codec should be tried on a chunk, if any: in turn those that could keep up with the
// link. The trial ends with tried.
func (m *meter) tryNext(now Codec, workers int) (Codec, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trial {
		return None, false
	}
	for _, s := range append(speeds()[m.next:], speeds()[:m.next]...) {
		m.next = int(s.codec+1) % int(codecsEnd)
		if s.codec != None && s.codec != now && s.bytesPerSecond*float64(workers) > m.link/2 {
			m.trial = true
			return s.codec, true
		}
	}
	return None, false
}

func (m *meter) tried() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trial = false
}

// LinkBitsPerSecond returns the link's speed when it was last the limit; 0: it never was.
func (s *Session) LinkBitsPerSecond() float64 {
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	return s.meter.link * 8
}

// Adapt lets the session change its codec as link, content and processor change, from what it observes
// while it sends. changed is called for each change; it may be nil. Call Adapt before anything is sent.
func (s *Session) Adapt(changed func(from, to Codec)) {
	if changed == nil {
		changed = func(Codec, Codec) {}
	}
	s.writer.changed = changed
}

// adapt applies the result of an interval.
func (w *writer) adapt(v verdict) {
	if w.changed == nil || !v.over {
		return
	}
	now := Codec(w.codec.Load())
	better := w.session.meter.choose(now, v, w.session.compressor.cores())
	if better != now && w.session.SetCodec(better) == nil {
		w.changed(now, better)
		if better == None {
			w.session.compressor.forget()
		}
	}
	w.wantTrial.Store(v.bound || v.packed)
}

// tryCodec tries another codec on a chunk.
func (w *writer) tryCodec(raw []byte) {
	if w.changed == nil || len(raw) < minChunk/2 || !w.wantTrial.CompareAndSwap(true, false) {
		return
	}
	codec, ok := w.session.meter.tryNext(Codec(w.codec.Load()), w.session.compressor.cores())
	if !ok {
		return
	}
	sample := append([]byte(nil), raw[:min(len(raw), trialBytes)]...)
	guard.Go(func() error { // on an error the codec stays as it is
		defer w.session.meter.tried()
		// The tables of the slow codecs take time and memory to make.
		if !incompressible(sample) && w.session.compressor.prepare(codec) != nil {
			return nil
		}
		start := time.Now()
		wire, worth := w.session.compressor.compress(codec, nil, sample)
		size := len(wire)
		if !worth {
			size = len(sample)
		}
		w.session.meter.packed(codec, len(sample), size, time.Since(start))
		return nil
	})
}
