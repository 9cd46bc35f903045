package stream

import "time"

// Constants of the control law. They trade a few per cent of the link for a few milliseconds of everybody
// else's latency. They were chosen in the simulation of pace_test.go and checked over emulated links.
const (
	// leastEpoch is the shortest time for which the path is watched before a decision. On shorter paths,
	// only the noise of a busy machine would be visible.
	leastEpoch = 8 * time.Millisecond
	// enoughBytes must have arrived in an epoch, or it continues, up to mostEpochs times as long, because
	// the acknowledgement of single segments may be delayed by 40 ms (RFC 1122, 4.2.3.2).
	enoughBytes = 8 * 1448
	mostEpochs  = 8
	// standing is how long our own queue may be, beyond what leaves at once.
	standing = 500 * time.Microsecond
	// standingShare of the round trip is added: an effect is visible a round trip later, so finer steering
	// is impossible.
	standingShare = 0.015
	// burstBytes leave back to back however low the rate: two segments (tcp_tso_autosize in
	// net/ipv4/tcp_output.c).
	burstBytes = 2 * 1448
	// mostBurst bounds the allowance for them.
	mostBurst = 60 * time.Millisecond
	// usedShare of the rate must have arrived for it to count as tried.
	usedShare = 0.85
	// mostLoss is the share of loss that counts as chance or radio noise. More means a link with almost no
	// queue.
	mostLoss = 0.05
	// lossBytes must have been sent for a share of loss to be meaningful.
	lossBytes = 100 * 1448
	// gainUp and gainDown are how much of the distance to the wanted queue is corrected in an epoch.
	gainUp, gainDown = 0.1, 0.5
	// recovered is the share of the link's last rate to which the pacer returns at once.
	recovered = 0.95
	// mostGentle bounds the growth of the rate in an epoch while nothing indicates a faster link.
	mostGentle = 0.03
	// leastShare of the link's recent rate is used even beside others who fill it.
	leastShare = 0.25
	// floorShare of the link's highest rate is used beside others who fill it for long; otherwise the rate
	// would shrink for ever. The highest rate is forgotten when the link does not carry this share for a
	// long time: during a burst of others it may not.
	floorShare = 0.1
	floorTime  = time.Second
	// shortestWait and longestWait bound the time between two looks for a shorter path.
	shortestWait = 4 * time.Second
	longestWait  = 60 * time.Second

	leastRate = 200e3 / 8 // bytes per second
	mostRate  = 100e9 / 8
	firstRate = 2e6 / 8
)

// paceSample is the state of the path at a moment. Counts only grow.
type paceSample struct {
	at        time.Duration // by any clock
	rtt       time.Duration // over the last few acknowledgements
	delivered int64         // bytes that have arrived
	sent      int64         // bytes, including retransmissions
	resent    int64
	taken     float64 // bytes per second that arrived when there was last enough to send
	dry       bool    // nothing waits to be sent
}

// pacer decides how fast to send, so that the bottleneck is busy and its queue is a millisecond or two
// long: other users of the path then find it nearly empty. The queue is the round trip minus the shortest
// one seen. pacer has no clock and does no I/O.
//
// A long queue lowers the rate in proportion to its length, starting from the rate at which data arrives,
// which is our share of the bottleneck. A short queue lets the rate rise: at once to nearly the link's
// recent rate, then slowly, and faster and faster if the link turns out to be faster. A queue that should
// have become shorter if it were ours, but has not, is somebody else's, or the path has become longer. It
// then counts as part of the path, which is checked again later.
type pacer struct {
	rate     float64       // bytes per second
	expected float64       // the link's expected rate, until something better is known
	took     [3]float64    // what arrived when there last was a queue; 0: there was none
	best     float64       // the highest of these
	failed   time.Duration // since when the link has not carried its share of best; 0: it does
	base     time.Duration // round trip without a queue
	step     float64       // how much the rate grows where the link seems to be quicker
	quiet    int           // epochs above the link's recent rate, without a queue

	begin     paceSample    // of the epoch
	least     time.Duration // round trip in its later half
	half      bool          // it has begun
	dry       bool          // there was nothing to send at times
	settle    int           // epochs until the last decision takes effect
	lossBegin paceSample

	over   episode
	look   time.Duration // when to look for a shorter path; 0: no reason to
	wait   time.Duration // from one look to the next
	resume float64       // the rate after a look; 0: no look is in progress
}

// episode is a period in which the queue is too long.
type episode struct {
	rate    float64       // before
	worst   time.Duration // beyond what is allowed
	drained time.Duration // how much shorter it must have become
}

// newPacer begins with a share of the link's expected rate; 0: unknown.
func newPacer(expected float64) *pacer {
	p := &pacer{rate: firstRate, expected: expected}
	if expected > 0 {
		p.rate = expected * 0.8
	}
	p.rate = min(max(p.rate, leastRate), mostRate)
	return p
}

// ceiling returns the link's recent rate; 0: unknown.
func (p *pacer) ceiling() float64 { return max(p.took[0], p.took[1], p.took[2]) }

// floor returns the rate below which the pacer does not go because of others.
func (p *pacer) floor() float64 { return p.best * floorShare }

// allowed returns how long the queue may be.
func (p *pacer) allowed() time.Duration {
	burst := time.Duration(burstBytes / p.rate * float64(time.Second))
	return standing + time.Duration(float64(p.base)*standingShare) +
		min(max(burst, time.Millisecond/2), mostBurst)
}

// interval returns how often to take a sample.
func (p *pacer) interval() time.Duration {
	return min(max(p.base/4, leastEpoch/4), 25*time.Millisecond)
}

// see processes a sample. It reports whether the rate has changed.
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
		p.half, p.least = true, s.rtt // earlier samples are outdated
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

// epoch is the observation of about a round trip.
type epoch struct {
	end, took time.Duration
	queue     time.Duration
	arrived   float64 // bytes per second
	taken     float64 // the same if there had always been something to send
	dry       bool
	lossy     bool
}

// used reports whether the epoch shows how the path behaves at the present rate.
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

// drain goes below the arrival rate by a share. The arrival rate says nothing about the path if there was
// too little to send.
func (p *pacer) drain(e epoch, share float64) {
	if !e.dry || p.used(e) {
		p.took[2], p.took[1], p.took[0] = p.took[1], p.took[0], e.taken
		p.best = max(p.best, min(e.taken, p.rate)) // bunched acknowledgements look like more
		p.slower(e)
		p.expected = 0
		p.rate = min(p.rate, max(e.taken, p.rate/2))
	}
	p.rate *= 1 - share
	p.rate = max(p.rate, p.ceiling()*leastShare, p.floor())
	p.settle, p.step, p.quiet = 1, 0, 0
}

// slower forgets the link's earlier rate when it now carries much less.
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

// grow raises the rate, and beyond the link's recent rate only if the present rate was tried.
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
		share = mostGentle // nothing has suggested caution yet
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

// lossy reports whether the loss is too high for chance.
func (p *pacer) lossy(s paceSample) bool {
	sent := s.sent - p.lossBegin.sent
	if sent < lossBytes {
		return false
	}
	share := float64(s.resent-p.lossBegin.resent) / float64(sent)
	p.lossBegin = s
	return share > mostLoss
}
