package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// probeFrame is the size of a train's frames: small, so that the receiver sees when each part arrived.
	probeFrame  = maxControl
	probeHeader = 8 + 1 // number of the train, whether this is its last frame
	maxMarks    = 512

	warmPings  = 4
	firstTrain = 14 << 10 // Linux's initial window: 10 segments (RFC 6928)
	// the part of it that pings, a greeting and earlier data take: the window counts segments, even small
	// ones
	ahead           = 6 << 10
	warmBytes       = 512 << 10
	warmDuration    = 300 * time.Millisecond
	warmRoundTrips  = 8
	measureDuration = 2 * time.Millisecond // shorter trains measure the machine and not the link
	// of the limit: a higher rate is held back by the limit, and not by the link
	nearLimit = 0.5
)

// Transport is the kernel's view of the path to the peer.
type Transport struct {
	WindowBytes           int64 // congestion window: how much may be unacknowledged
	ResentBytes           int64
	SentBytes             int64 // including retransmissions
	DeliveredBytes        int64 // received by the peer, even behind a gap
	UnsentBytes           int64 // passed to the kernel and not sent yet
	RTT                   time.Duration
	DeliveryBitsPerSecond float64 // when data was last delivered; 0: never
	// PacingBitsPerSecond is the rate at which the kernel would pace segments. Whether it does depends on
	// the congestion control (BBR always does) and on the queueing discipline.
	PacingBitsPerSecond float64
	Busy                time.Duration // so far: time with something to send
	// of Busy: time waiting for the receiver's window, or for room at the sender
	Limited time.Duration
}

// transporter is a connection that has this view; wire.Conn is one.
type transporter interface {
	Transport() (Transport, error)
}

// Transport returns the kernel's view of the path to the peer. While bulk data is sent,
// DeliveryBitsPerSecond is the best measure of the bandwidth. false: the connection does not have it.
func (s *Session) Transport() (Transport, bool) {
	conn, ok := s.conn.(transporter)
	if !ok {
		return Transport{}, false
	}
	t, err := conn.Transport()
	return t, err == nil
}

// Budget bounds the cost of Warm. Zero values: 512 KiB, and 300 ms or eight round trips, whichever is
// longer, because a window opens by round trips.
type Budget struct {
	Bytes    int
	Duration time.Duration
	// Enough is a window that holds everything that is to be sent: a larger one is useless, even if the
	// link would hold more. 0: the link's. A bandwidth measured with so little is not exact. For no more
	// than Little, Warm waits for one round trip only; the rest of the window is opened in parallel to
	// whatever comes next.
	Enough int64
	// BitsPerSecond is the known bandwidth of the link, for no more than Little: then a window that holds
	// the data in flight at that rate is enough, too. 0: unknown.
	BitsPerSecond float64
}

// Little leaves within so few round trips that the link's bandwidth does not matter.
const Little = 128 << 10

// Link is the result of Warm.
type Link struct {
	BandwidthBitsPerSecond float64 // 0: not measurable within the budget
	RTT                    time.Duration
	Clock                  Offset
	WindowBytes            int64 // 0: unknown to the connection
	// Open means that the window is as large as the link's capacity, so that data sent now leaves at the
	// link's full rate.
	Open bool
	// AtLeast means that the sender was the limit: the link may have more.
	AtLeast bool
	// Limited means that a limit of this side (SetRate) may have held the measurement back: the result is
	// that limit, and the link may have much more.
	Limited   bool
	SentBytes int
}

// Warm measures the path to the peer and opens the congestion window, so that data sent soon after does not
// pay for a slow start. It sends trains that grow with the window. The receiver answers each with the rate
// at which it arrived. Warm stops as soon as the window is as large as the link, something was lost, or the
// budget is used up; so it never floods a link. It may be called again to continue. Nothing else should be
// sent meanwhile, and the peer must be reading. The next data should follow within a retransmission timeout
// (200 ms and more), or the kernel closes the window again: see wire.Sysctls.
//
// Measured over emulated links, 200 KiB and an answer on a new connection, and in brackets what the link
// allows: at 100 Mbit/s and 20 ms, 94 ms without and 38 ms after Warm (36); at 10 Mbit/s and 100 ms, 477
// and 272 ms (264). After 2 s of silence it was 103 ms again at 100 Mbit/s with CUBIC, and 38 ms with BBR.
func (s *Session) Warm(ctx context.Context, b Budget) (Link, error) {
	if b.Bytes == 0 {
		b.Bytes = warmBytes
	}
	w := warming{session: s, budget: b, start: time.Now(), size: firstTrain}
	w.look()
	w.lost = w.resent
	err := w.begin(ctx)
	if b.Enough > 0 && b.Enough <= Little {
		err = w.openRest(ctx, err)
	} else {
		for err == nil && w.goOn() {
			err = w.step(ctx)
		}
	}
	limit := s.limiter.bitsPerSecond()
	w.link.Limited = limit > 0 && w.link.BandwidthBitsPerSecond > nearLimit*limit
	if err != nil {
		return w.link, fmt.Errorf("measure the link: %w", err)
	}
	return w.link, nil
}

// begin measures the round trip and the peer's clock. The pings leave together: one after the other they
// would take as many round trips. If only a window is wanted, the first train goes right behind them. It
// may have to wait for room in the window, so it would say nothing about the link.
func (w *warming) begin(ctx context.Context) error {
	pongs := w.session.pings(ctx)
	arrived := func() error { return nil }
	if w.budget.Enough > 0 && w.goOn() {
		w.size = max(w.size-ahead, firstTrain/2)
		arrived = w.send(ctx)
	}
	samples, err := pongs()
	if err != nil {
		return errors.Join(err, arrived())
	}
	w.link.RTT = max(samples[0].RTT(), time.Microsecond)
	for _, sample := range samples {
		w.link.RTT = max(min(w.link.RTT, sample.RTT()), time.Microsecond)
	}
	if w.budget.Duration == 0 {
		w.budget.Duration = max(warmDuration, warmRoundTrips*w.link.RTT)
	}
	if w.link.Clock, err = EstimateOffset(samples); err != nil {
		return errors.Join(err, arrived())
	}
	return arrived()
}

// pings sends all pings in one segment. The returned function waits for the answers, and must be called.
func (s *Session) pings(ctx context.Context) (wait func() ([]Sample, error)) {
	samples, errs, frames := make([]Sample, warmPings), make([]error, warmPings), make([][]byte, warmPings)
	var answers sync.WaitGroup
	for i := range samples {
		number, answer := s.waiters.add()
		frames[i] = ping(number)
		answers.Go(func() {
			defer s.waiters.remove(number)
			samples[i], errs[i] = sampled(s.await(ctx, answer))
		})
	}
	failed := s.sendNow(ctx, frames)
	return func() ([]Sample, error) {
		if failed != nil {
			return nil, failed // whatever failed, nobody waits for the answers either
		}
		answers.Wait()
		return samples, errors.Join(errs...)
	}
}

// warming is one run of Warm.
type warming struct {
	session *Session
	budget  Budget
	link    Link
	start   time.Time
	size    int // of the next train
	seen    []seen
	longest float64       // of seen, in bytes
	best    float64       // highest rate seen
	flat    int           // trains since the rate last grew
	took    time.Duration // the last train
	resent  int64
	lost    int64         // resent at the beginning
	beyond  time.Duration // excess of the last train's round trip over the link's
	pacing  float64       // the kernel's rate for the next train
	paced   bool          // the sender, not the link, seems to have spread the last train
}

// seen is the receiver's observation of a train.
type seen struct {
	bytes float64
	rate  float64 // bits per second
}

// look queries the kernel for the window and sizes the next train by it. A train slightly smaller than the
// window leaves at once, and still lets the window grow (tcp_is_cwnd_limited in include/net/tcp.h wants
// half).
func (w *warming) look() {
	t, ok := w.session.Transport()
	if !ok {
		w.size = max(firstTrain, 2*w.link.SentBytes)
		return
	}
	w.link.WindowBytes, w.resent, w.pacing = t.WindowBytes, t.ResentBytes, t.PacingBitsPerSecond
	w.size = max(firstTrain/2, int(t.WindowBytes)*9/10)
	inFlight := w.link.BandwidthBitsPerSecond / 8 * w.link.RTT.Seconds()
	w.link.Open = inFlight > 0 && !w.paced && float64(t.WindowBytes) >= 1.25*inFlight
}

func (w *warming) goOn() bool {
	left := w.budget.Bytes - w.link.SentBytes
	if w.budget.Enough > 0 && w.link.WindowBytes >= w.budget.Enough {
		return false
	}
	if left < probeFrame || w.resent > w.lost || (w.link.Open && w.took >= measureDuration) {
		return false
	}
	w.size = min(w.size, left)
	next := w.link.RTT
	if w.link.BandwidthBitsPerSecond > 0 {
		next += time.Duration(float64(w.size) * 8 / w.link.BandwidthBitsPerSecond * float64(time.Second))
	}
	return w.link.SentBytes == 0 || time.Since(w.start)+next <= w.budget.Duration
}

// openRest sends what the window lacks after the first train, for which there is room, and does not wait
// for the answer: it takes about as long as what is done before the window is used.
func (w *warming) openRest(ctx context.Context, err error) error {
	if err != nil || w.resent > w.lost {
		return err
	}
	enough := min(w.budget.Enough, w.underWay())
	size := int(min(enough-w.link.WindowBytes, int64(w.budget.Bytes-w.link.SentBytes)))
	if int64(size) <= enough/10 {
		return nil
	}
	number, _ := w.session.waiters.add()
	w.session.waiters.remove(number)
	w.link.SentBytes += size
	return w.session.sendNow(ctx, train(number, size))
}

// underWay bounds how much is in flight on the link: from its bandwidth, or, while that is unknown, from
// the first train.
func (w *warming) underWay() int64 {
	bits := w.budget.BitsPerSecond
	if bits <= 0 {
		bits = math.Inf(1)
		if w.beyond > 0 {
			bits = float64(w.link.SentBytes) * 8 / w.beyond.Seconds()
		}
	}
	if limit := w.session.limiter.bitsPerSecond(); limit > 0 {
		bits = min(bits, limit)
	}
	return int64(min(bits/8*w.link.RTT.Seconds(), Little))
}

// step sends a train and processes the receiver's answer.
func (w *warming) step(ctx context.Context) error { return w.send(ctx)() }

// send sends a train. The returned function waits for the receiver's answer, when the round trip is known,
// and must be called.
func (w *warming) send(ctx context.Context) (arrived func() error) {
	size, asked := w.size, time.Now()
	report := w.session.question(ctx, func(number uint64) [][]byte { return train(number, size) })
	return func() error {
		answer, err := report()
		if err != nil {
			return err
		}
		if len(answer) != reportBytes-8 {
			return protocolError("a report of %d bytes", len(answer)+8)
		}
		w.link.SentBytes += size
		w.beyond = time.Since(asked) - w.link.RTT
		bytes, took := binary.BigEndian.Uint64(answer), time.Duration(binary.BigEndian.Uint64(answer[8:]))
		if bytes <= warmBytes*2 && took > 0 {
			w.measure(float64(bytes), took, believable(size, w.beyond))
		}
		w.look()
		return nil
	}
}

// flatTrains is how many trains without growth mean that the pipe is full; BBR's startup takes as many
// rounds.
const flatTrains = 3

// believable returns the highest possible rate of a train that was under way for this long. To a receiver
// that wakes late, all of the train seems to come at once; but then the answer comes late, too.
func believable(bytes int, underWay time.Duration) float64 {
	// the time includes some that is not the link's, but less than that of half of a long train
	const over = 2
	if underWay <= 0 {
		return math.Inf(1)
	}
	return over * float64(bytes) * 8 / underWay.Seconds()
}

// measure derives the bandwidth from the receiver's observations. It uses the longest trains, which are the
// most exact, and among trains of similar length the median, because a busy machine can make a train look
// slower, or faster if it wakes up late. No rate is above most.
func (w *warming) measure(bytes float64, took time.Duration, most float64) {
	rate := min(bytes*8/took.Seconds(), most)
	if w.flat++; rate > 1.25*w.best {
		w.flat = 0
	}
	w.best = max(w.best, rate)
	w.paced = w.flat < flatTrains && rate > 0.7*w.pacing && rate < 1.4*w.pacing
	w.took = took
	w.seen = append(w.seen, seen{bytes: bytes, rate: rate})
	w.longest = max(w.longest, bytes)
	var rates []float64
	for _, s := range w.seen {
		if s.bytes >= w.longest/2 {
			rates = append(rates, s.rate)
		}
	}
	slices.Sort(rates)
	w.link.BandwidthBitsPerSecond, w.link.AtLeast = rates[len(rates)/2], w.paced
}

// train makes the frames of a train of about size bytes.
func train(number uint64, size int) [][]byte {
	frames := make([][]byte, 0, size/probeFrame+1)
	for left := size; left > 0; left -= probeFrame {
		payload := make([]byte, min(max(left, probeHeader), probeFrame-headerBytes))
		binary.BigEndian.PutUint64(payload, number)
		if left <= probeFrame {
			payload[8] = 1
		}
		frames = append(frames, controlFrame(frameProbe, payload))
	}
	return frames
}

// reportBytes: number of the train, bytes, nanoseconds.
const reportBytes = 24

// trains is the receiver's side: it records when the parts of a train arrive.
type trains struct {
	number uint64
	marks  []mark
}

type mark struct {
	bytes int
	at    time.Time
}

// probe processes a frame of a train, and makes the report after the last.
func (t *trains) probe(payload []byte, now time.Time) ([]byte, error) {
	if len(payload) < probeHeader {
		return nil, protocolError("a probe of %d bytes", len(payload))
	}
	if number := binary.BigEndian.Uint64(payload); number != t.number || t.marks == nil {
		t.number, t.marks = number, t.marks[:0]
	}
	if len(t.marks) < maxMarks {
		t.marks = append(t.marks, mark{bytes: headerBytes + len(payload), at: now})
	}
	if payload[8] == 0 {
		return nil, nil
	}
	bytes, took := rate(t.marks)
	t.marks = t.marks[:0]
	report := binary.BigEndian.AppendUint64(nil, t.number)
	report = binary.BigEndian.AppendUint64(report, uint64(bytes))
	return controlFrame(frameReport, binary.BigEndian.AppendUint64(report, uint64(max(0, took)))), nil
}

// rate returns how much arrived in which time in the second half of a train: the first half may have passed
// a shaper's bucket faster than the link.
func rate(marks []mark) (bytes int, took time.Duration) {
	if len(marks) < 2 {
		return 0, 0
	}
	half := (len(marks) - 1) / 2
	for _, m := range marks[half+1:] {
		bytes += m.bytes
	}
	return bytes, marks[len(marks)-1].at.Sub(marks[half].at)
}
