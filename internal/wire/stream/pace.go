package stream

import "time"

// Constants of the control law. What they trade is a few per cent of the link against a few
// milliseconds of everybody else's packets; they were chosen in the simulation of pace_test.go and
// checked over emulated links.
const (
	// leastEpoch is the shortest time over which the way is watched before something is decided. On
	// shorter ways the noise of a busy machine would be all that is seen.
	leastEpoch = 8 * time.Millisecond
	// enoughBytes must have arrived in an epoch, or it goes on, up to mostEpochs times as long: the
	// acknowledgement of single segments may be held back for 40 ms (RFC 1122, 4.2.3.2).
	enoughBytes = 8 * 1448
	mostEpochs  = 8
	// standing is how long a queue of our making may be, beyond what leaves at once.
	standing = 500 * time.Microsecond
	// standingShare of the round trip is added: what has happened is seen a round trip later, so
	// one cannot steer finer.
	standingShare = 0.015
	// burstBytes leave back to back however low the rate: two segments (tcp_tso_autosize in
	// net/ipv4/tcp_output.c).
	burstBytes = 2 * 1448
	// mostBurst bounds what is allowed for them.
	mostBurst = 60 * time.Millisecond
	// usedShare of the rate must have arrived for it to count as tried out.
	usedShare = 0.85
	// mostLoss of what is sent is taken for chance or for radio. More is taken for a link that has
	// no queue to speak of.
	mostLoss = 0.05
	// lossBytes must have been sent for a share of loss to mean something.
	lossBytes = 100 * 1448
	// gainUp and gainDown are how much of the distance to the wanted queue is made up for in an epoch.
	gainUp, gainDown = 0.1, 0.5
	// recovered is how much of what the link took last is gone back to at once.
	recovered = 0.95
	// mostGentle is the most by which the rate grows in an epoch while nothing speaks for a quicker link.
	mostGentle = 0.03
	// leastShare of what the link took lately is used even beside others who fill it.
	leastShare = 0.25
	// floorShare of the most that the link ever took is used beside others who fill it for long:
	// what took less and less beside them would never end. It is forgotten when the link does not
	// take it for so long: in a burst of others it may not.
	floorShare = 0.1
	floorTime  = time.Second
	// shortestWait and longestWait are between two looks for a shorter way.
	shortestWait = 4 * time.Second
	longestWait  = 60 * time.Second

	leastRate = 200e3 / 8 // bytes per second
	mostRate  = 100e9 / 8
	firstRate = 2e6 / 8
)

// paceSample is how the way looks at a moment. Counts only grow.
type paceSample struct {
	at        time.Duration // of any clock
	rtt       time.Duration // over the last few acknowledgements
	delivered int64         // bytes that have arrived
	sent      int64         // bytes, with those sent again
	resent    int64
	taken     float64 // bytes per second that arrived when there last was enough to send
	dry       bool    // nothing waits to be sent
}

// pacer decides how fast to send, so that the bottleneck is busy and what waits in front of it is a
// millisecond or two: others who use the way then find it nearly empty. The queue is the round trip
// less the shortest that was seen. It has no clock and does no I/O.
//
// A long queue drains in proportion to its length, from the rate at which things arrive, which is
// what the bottleneck has for us. A short one lets the rate rise: at once to nearly what the link
// took lately, then slowly, and faster and faster where the link turns out to be quicker than that.
// A queue that does not become shorter although it must have, were it ours, is somebody else's, or
// the way has become longer: it counts as part of the way, and is tried again later.
type pacer struct {
	rate     float64       // bytes per second
	expected float64       // what the link should take, while nothing better is known
	took     [3]float64    // what arrived when there last was a queue; 0: there was none
	best     float64       // the most of that
	failed   time.Duration // since when the link does not take its part of that; 0: it does
	base     time.Duration // round trip without a queue
	step     float64       // how much the rate grows where the link seems to be quicker
	quiet    int           // epochs beyond what the link took lately, without a queue

	begin     paceSample    // of the epoch
	least     time.Duration // round trip in its later half
	half      bool          // it has begun
	dry       bool          // there was nothing to send at times
	settle    int           // epochs until what was decided shows
	lossBegin paceSample

	over   episode
	look   time.Duration // when to look for a shorter way; 0: there is no reason to
	wait   time.Duration // from one look to the next
	resume float64       // the rate after a look; 0: none is under way
}

// episode is a time in which the queue is too long.
type episode struct {
	rate    float64       // before
	worst   time.Duration // beyond what is allowed
	drained time.Duration // by how much it must have become shorter
}

// newPacer begins at a part of what the link is expected to take; 0: not known.
func newPacer(expected float64) *pacer {
	p := &pacer{rate: firstRate, expected: expected}
	if expected > 0 {
		p.rate = expected * 0.8
	}
	p.rate = min(max(p.rate, leastRate), mostRate)
	return p
}

// ceiling is what the link took lately; 0: not known.
func (p *pacer) ceiling() float64 { return max(p.took[0], p.took[1], p.took[2]) }

// floor is below what it does not go because of others.
func (p *pacer) floor() float64 { return p.best * floorShare }

// allowed is how long the queue may be.
func (p *pacer) allowed() time.Duration {
	burst := time.Duration(burstBytes / p.rate * float64(time.Second))
	return standing + time.Duration(float64(p.base)*standingShare) +
		min(max(burst, time.Millisecond/2), mostBurst)
}

// interval is how often a sample should be taken.
func (p *pacer) interval() time.Duration {
	return min(max(p.base/4, leastEpoch/4), 25*time.Millisecond)
}

// see takes a sample. It says whether the rate has changed.
func (p *pacer) see(s paceSample) bool {
	if s.rtt <= 0 {
		return false
	}
	if p.base == 0 {
		p.base, p.lossBegin = s.rtt, s
		p.start(s)
		return false
	}
	took, whole := s.at-p.begin.at, max(leastEpoch, p.least)
	if took > whole/2 && !p.half {
		p.half, p.least = true, s.rtt // what was before is old
	}
	p.least, p.dry = min(p.least, s.rtt), p.dry || s.dry
	if took < whole || (s.delivered-p.begin.delivered < enoughBytes && took < mostEpochs*whole) {
		return false
	}
	was := p.rate
	if p.least < p.base {
		p.base -= (p.base - p.least + 1) / 2
	}
	if arrived := s.delivered - p.begin.delivered; arrived > 0 {
		e := epoch{
			end: s.at, took: took, queue: max(0, p.least-p.base), arrived: float64(arrived) / took.Seconds(),
			dry: p.dry, lossy: p.lossy(s),
		}
		e.taken = max(e.arrived, min(s.taken, p.rate))
		p.decide(e)
	}
	p.start(s)
	p.rate = min(max(p.rate, leastRate), mostRate)
	return p.rate != was
}

// start begins an epoch.
func (p *pacer) start(s paceSample) { p.begin, p.least, p.half, p.dry = s, s.rtt, false, s.dry }

// epoch is what was seen in about a round trip.
type epoch struct {
	end, took time.Duration
	queue     time.Duration
	arrived   float64 // bytes per second
	taken     float64 // the same as if there had been something to send all the time
	dry       bool
	lossy     bool
}

// used says whether the epoch tells what the way does at the present rate.
func (p *pacer) used(e epoch) bool { return e.arrived >= usedShare*p.rate }

func (p *pacer) decide(e epoch) {
	allowed := p.allowed()
	switch {
	case p.settle > 0:
		p.settle--
	case p.resume > 0:
		p.rate, p.resume = p.resume, 0
	case p.look > 0 && e.end > p.look:
		p.wait = min(2*p.wait, longestWait)
		p.look, p.resume, p.settle = e.end+p.wait, p.rate, 1
		p.rate /= 2
	case e.queue > allowed:
		p.tooLong(e, e.queue-allowed)
	case e.lossy:
		p.drain(e, mostLoss)
	default:
		p.over = episode{}
		p.grow(e, allowed)
	}
}

// tooLong makes the queue shorter, or finds that it is not ours.
func (p *pacer) tooLong(e epoch, excess time.Duration) {
	if p.over.rate == 0 {
		p.over.rate = p.rate
	}
	p.over.worst = max(p.over.worst, excess)
	if p.over.drained > 3*p.over.worst {
		p.base += e.queue
		p.rate = max(p.rate, p.over.rate*recovered)
		p.over, p.settle = episode{}, 1
		p.wait = shortestWait
		p.look = e.end + p.wait
		return
	}
	share := min(0.5, gainDown*excess.Seconds()/e.took.Seconds())
	p.over.drained += time.Duration(share * float64(e.took))
	p.drain(e, share)
}

// drain goes below what arrives by a share. What arrives says nothing of the way where there was
// too little to send.
func (p *pacer) drain(e epoch, share float64) {
	if !e.dry || p.used(e) {
		p.took[2], p.took[1], p.took[0] = p.took[1], p.took[0], e.taken
		p.best = max(p.best, min(e.taken, p.rate)) // acknowledgements that come in a heap look like more
		p.slower(e)
		p.expected = 0
		p.rate = min(p.rate, max(e.taken, p.rate/2))
	}
	p.rate *= 1 - share
	p.rate = max(p.rate, p.ceiling()*leastShare, p.floor())
	p.settle, p.step, p.quiet = 1, 0, 0
}

// slower forgets what the link once took when it takes much less now.
func (p *pacer) slower(e epoch) {
	switch {
	case e.dry || p.rate > p.floor() || p.used(e):
		p.failed = 0
	case p.failed == 0:
		p.failed = e.end
	case e.end-p.failed > floorTime:
		p.best, p.failed = e.taken, 0
	}
}

// grow goes up, beyond what the link took lately only if the present rate was tried out.
func (p *pacer) grow(e epoch, allowed time.Duration) {
	ceiling, used := p.ceiling(), p.used(e)
	if p.rate < recovered*ceiling && e.queue < allowed*2/3 && (used || e.dry) {
		p.rate = recovered * ceiling
		p.settle = 1
		return
	}
	if !used {
		return
	}
	ceiling = max(ceiling, p.expected)
	share := min(gainUp*(allowed-e.queue).Seconds()/e.took.Seconds(), mostGentle)
	switch {
	case p.rate < p.expected:
		share = mostGentle // nothing was seen yet that speaks for care
	case ceiling == 0:
		p.step = 1
	case p.rate < 1.02*p.ceiling() || e.queue > allowed/2:
		p.step, p.quiet = 0, 0
	default:
		if p.quiet++; p.quiet >= 3 {
			p.step = min(max(0.01, 2*p.step), 0.5)
		}
	}
	p.rate *= 1 + max(share, p.step)
}

// lossy says whether so much was lost that it cannot be chance.
func (p *pacer) lossy(s paceSample) bool {
	sent := s.sent - p.lossBegin.sent
	if sent < lossBytes {
		return false
	}
	share := float64(s.resent-p.lossBegin.resent) / float64(sent)
	p.lossBegin = s
	return share > mostLoss
}
