package stream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// way is a simulated link with a sender that a pacer steers: a serialiser with a queue, a delay, loss, and
// other users, in steps of a quarter of a millisecond.
type way struct {
	capacity float64 // bytes per second
	rtt      time.Duration
	most     time.Duration // of the queue
	loss     float64
	jitter   time.Duration // of a sample
	others   func(at time.Duration, queue time.Duration) float64
	limit    float64       // the sender's supply, bytes per second; 0: unlimited
	held     time.Duration // no acknowledgement comes before

	now     time.Duration
	queue   float64 // bytes
	credit  float64
	flight  []flying
	srtt    time.Duration
	sample  paceSample
	queues  []time.Duration
	random  *rand.Rand
	arrived float64
}

type flying struct {
	back  time.Duration // when the acknowledgement is back
	bytes float64
	took  time.Duration
	lost  bool
}

const tick = 250 * time.Microsecond

func newWay(mbit float64, rtt time.Duration) *way {
	return &way{capacity: mbit * 1e6 / 8, rtt: rtt, srtt: rtt, most: max(50*time.Millisecond, rtt),
		random: rand.New(rand.NewPCG(1, 2))}
}

func (w *way) step(rate float64) {
	w.now += tick
	seconds := tick.Seconds()
	if w.others != nil {
		w.queue = min(w.queue+w.others(w.now, w.waits())*seconds, max(w.queue, w.capacity*w.most.Seconds()))
	}
	if w.limit > 0 {
		rate = min(rate, w.limit)
	}
	w.credit += rate * seconds
	if burst := max(burstBytes, rate*0.001); w.credit >= burst {
		w.credit -= burst
		w.send(burst)
	}
	w.queue = max(0, w.queue-w.capacity*seconds)
	w.queues = append(w.queues, w.waits())
	for len(w.flight) > 0 && w.flight[0].back <= w.now && w.held <= w.now {
		w.acknowledge(w.flight[0])
		w.flight = w.flight[1:]
	}
}

func (w *way) waits() time.Duration { return time.Duration(w.queue / w.capacity * 1e9) }

func (w *way) send(burst float64) {
	w.sample.sent += int64(burst)
	f := flying{bytes: burst}
	if w.queue+burst > w.capacity*w.most.Seconds() {
		f.lost = true
	} else {
		w.queue += burst
		f.lost = w.random.Float64() < w.loss*burst/1448
	}
	f.took = w.waits() + w.rtt
	if w.jitter > 0 {
		f.took += time.Duration(w.random.Float64() * float64(w.jitter))
	}
	f.back = w.now + f.took
	if n := len(w.flight); n > 0 {
		f.back = max(f.back, w.flight[n-1].back)
	}
	w.flight = append(w.flight, f)
}

func (w *way) acknowledge(f flying) {
	if f.lost {
		w.sample.resent += int64(f.bytes)
		return
	}
	if w.srtt == 0 {
		w.srtt = f.took
	}
	w.srtt += (f.took - w.srtt) / 8
	w.sample.delivered += int64(f.bytes)
	w.arrived += f.bytes
}

// run lets a pacer steer for a while, and returns the share of the capacity that arrived and the queue's
// percentiles.
func (w *way) run(p *pacer, duration time.Duration) (share float64, p50, p99 time.Duration) {
	w.queues, w.arrived = w.queues[:0], 0
	end, next := w.now+duration, w.now
	for w.now < end {
		if w.now >= next {
			next = w.now + p.interval()
			s := w.sample
			s.at, s.rtt, s.dry = w.now, w.srtt, w.limit > 0 && w.limit < p.rate
			p.see(s)
		}
		w.step(p.rate)
	}
	slices.Sort(w.queues)
	at := func(q float64) time.Duration { return w.queues[int(q*float64(len(w.queues)-1))] }
	return w.arrived / (w.capacity * duration.Seconds()), at(0.5), at(0.99)
}

// law is a pacer on a way, with a test's requirements.
type law struct {
	*testing.T
	way   *way
	pacer *pacer
}

func newLaw(t *testing.T, mbit float64, rtt time.Duration, expected float64) *law {
	return &law{T: t, way: newWay(mbit, rtt), pacer: newPacer(expected * mbit * 1e6 / 8)}
}

// wants lets some time pass in which the link must be busy and the queue short.
func (l *law) wants(what string, duration time.Duration, share float64, p50, p99 time.Duration) {
	l.Helper()
	got, median, worst := l.way.run(l.pacer, duration)
	if got < share || median > p50 || worst > p99 {
		l.Errorf("%s: %.3f of the link, queue %s, p99 %s; wanted %.3f, %s, %s; the pacer is %+v", what, got,
			median, worst, share, p50, p99, *l.pacer)
	}
}

const ms = time.Millisecond

func TestPaceKeepsTheLinkBusyAndTheQueueShort(t *testing.T) {
	for _, c := range []struct {
		mbit     float64
		rtt      time.Duration
		loss     float64
		share    float64
		p50, p99 time.Duration
	}{
		{1000, 400 * time.Microsecond, 0, 0.95, 1 * ms, 4 * ms},
		{100, 20 * ms, 0, 0.95, 1 * ms, 5 * ms},
		{100, 100 * ms, 0, 0.95, 3 * ms, 8 * ms},
		{10, 100 * ms, 0, 0.95, 3 * ms, 9 * ms},
		{10, 100 * ms, 0.01, 0.8, 3 * ms, 9 * ms},
		{5, 50 * ms, 0, 0.95, 4 * ms, 11 * ms},
		{1, 200 * ms, 0, 0.8, 25 * ms, 50 * ms},
		{2500, 2 * ms, 0, 0.95, 2 * ms, 5 * ms},
	} {
		for _, expected := range []float64{0, 0.1, 1, 10} {
			t.Run(fmt.Sprintf("%g Mbit/s %s loss %g expected %g", c.mbit, c.rtt, c.loss, expected),
				func(t *testing.T) {
					l := newLaw(t, c.mbit, c.rtt, expected)
					l.way.loss = c.loss
					if expected == 1 {
						l.wants("at once", 2*time.Second, 0.75*(1-10*c.loss), c.p50, c.p99)
					} else {
						l.way.run(l.pacer, max(8*time.Second, 120*c.rtt)) // it finds the rate
					}
					l.wants("for long", 10*time.Second, c.share, c.p50, c.p99)
				})
		}
	}
}

func TestPaceFollowsTheLink(t *testing.T) {
	for _, rtt := range []time.Duration{400 * time.Microsecond, 20 * ms, 100 * ms} {
		t.Run(rtt.String(), func(t *testing.T) {
			l := newLaw(t, 100, rtt, 1)
			settle := func() { l.way.run(l.pacer, max(3*time.Second, 60*rtt)) }
			settle()
			l.wants("at first", 5*time.Second, 0.95, 3*ms, 9*ms)
			l.way.capacity /= 5
			settle()
			l.wants("five times slower", 5*time.Second, 0.95, 3*ms, 9*ms)
			l.way.capacity /= 10
			settle()
			l.wants("fifty times slower", 5*time.Second, 0.7, 30*ms, 60*ms)
			l.way.capacity *= 50
			settle()
			settle()
			l.wants("as fast as before", 5*time.Second, 0.95, 3*ms, 9*ms)
			l.way.rtt *= 2
			settle()
			settle()
			l.wants("twice as far", 10*time.Second, 0.9, 4*ms, 15*ms)
			l.way.rtt /= 2
			settle()
			settle()
			l.wants("as near as before", 5*time.Second, 0.95, 4*ms, 15*ms)
		})
	}
}

// TestPaceForgetsAFasterLink checks that the link's earlier speed is forgotten, however much slower it has
// become.
func TestPaceForgetsAFasterLink(t *testing.T) {
	for _, slower := range []float64{8, 12, 15, 19, 30} {
		for _, rtt := range []time.Duration{400 * time.Microsecond, 20 * ms, 100 * ms} {
			l := newLaw(t, 100, rtt, 1)
			l.way.run(l.pacer, 5*time.Second)
			l.way.capacity /= slower
			l.way.run(l.pacer, 60*time.Second)
			l.wants(fmt.Sprintf("%g times slower, %s", slower, rtt), 20*time.Second, 0.7, 30*ms, 60*ms)
		}
	}
}

// TestPaceBearsAcknowledgementsInHeaps checks that bunched acknowledgements are not taken for a faster
// link.
func TestPaceBearsAcknowledgementsInHeaps(t *testing.T) {
	l := newLaw(t, 100, 5*ms, 1)
	l.way.run(l.pacer, 3*time.Second)
	for range 20 {
		l.way.held = l.way.now + 300*ms
		l.way.run(l.pacer, 2*time.Second)
	}
	l.way.run(l.pacer, 5*time.Second)
	l.wants("after it", 10*time.Second, 0.9, 3*ms, 10*ms)
}

func TestPaceBearsHavingLittleToSend(t *testing.T) {
	l := newLaw(t, 100, 20*ms, 1)
	l.way.run(l.pacer, 3*time.Second)
	before := l.pacer.rate
	l.way.limit = l.way.capacity / 20
	l.way.run(l.pacer, 20*time.Second)
	if l.pacer.rate < before*0.8 {
		t.Errorf("the rate fell from %.0f to %.0f while little was sent", before, l.pacer.rate)
	}
	l.way.limit = 0
	l.wants("after it", 3*time.Second, 0.95, 2*ms, 6*ms)
}

func TestPaceLeavesOthersTheirPart(t *testing.T) {
	l := newLaw(t, 100, 20*ms, 1)
	l.way.run(l.pacer, 3*time.Second)
	half := l.way.capacity / 2
	l.way.others = func(time.Duration, time.Duration) float64 { return half }
	l.way.run(l.pacer, 3*time.Second)
	l.wants("beside a steady flow", 5*time.Second, 0.45, 5*ms, 15*ms)
	// Another flow fills every queue until something is lost. Little is left beside it, but not nothing.
	flow := half
	l.way.others = func(_, queue time.Duration) float64 {
		if queue > l.way.most*9/10 {
			flow *= 0.9
		}
		flow *= 1.0001
		return flow
	}
	if share, _, _ := l.way.run(l.pacer, 10*time.Second); share < 0.05 {
		t.Errorf("beside a greedy flow %.3f of the link is left", share)
	}
	// Many flows fill the queue in bursts, for a long time.
	l.way.others = func(at, _ time.Duration) float64 {
		if at%(400*ms) < 300*ms {
			return 1.25 * l.way.capacity
		}
		return 0
	}
	if share, _, _ := l.way.run(l.pacer, 2*time.Minute); share < 0.05 {
		t.Errorf("beside bursts %.3f of the link is left; the pacer is %+v", share, *l.pacer)
	}
	l.way.others = nil
	l.way.run(l.pacer, 5*time.Second)
	l.wants("alone again", 10*time.Second, 0.9, 5*ms, 15*ms)
}

func TestPaceBearsAWayWhoseDelayVaries(t *testing.T) {
	for _, mbit := range []float64{1000, 100, 10} {
		l := newLaw(t, mbit, 20*ms, 1)
		l.way.jitter = 5 * ms
		l.way.run(l.pacer, 5*time.Second)
		l.wants(fmt.Sprintf("%g Mbit/s", mbit), 20*time.Second, 0.5, 5*ms, 20*ms)
	}
}

func TestPaceYieldsToALinkWithoutAQueue(t *testing.T) {
	l := newLaw(t, 100, 20*ms, 0)
	l.way.most = 2 * ms // a policer
	l.way.run(l.pacer, 5*time.Second)
	before := l.way.sample
	share, _, _ := l.way.run(l.pacer, 10*time.Second)
	lost := float64(l.way.sample.resent-before.resent) / float64(l.way.sample.sent-before.sent)
	if share < 0.8 || lost > 2*mostLoss {
		t.Errorf("%.3f of the link, %.3f lost", share, lost)
	}
}

func TestPaceStaysInItsBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	p := newPacer(0)
	var s paceSample
	for range 100_000 {
		s.at += time.Duration(random.Int64N(int64(50 * ms)))
		s.rtt = time.Duration(random.Int64N(int64(time.Second)))
		s.sent += random.Int64N(1 << 20)
		s.delivered += random.Int64N(1 << 20)
		s.resent += random.Int64N(1 << 18)
		s.taken, s.dry = random.Float64()*1e9, random.IntN(2) == 0
		p.see(s)
		if !(p.rate >= leastRate && p.rate <= mostRate) || p.base < 0 || p.interval() <= 0 ||
			p.allowed() <= 0 {
			t.Fatalf("the pacer is %+v", *p)
		}
	}
}
