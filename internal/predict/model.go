package predict

import (
	"math"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// leaning says at which end uncertain values are taken: each field but the last is a factor on the measured
// value.
type leaning struct {
	bandwidth, dirtying, costs, content float64
	// rewritten is after how many seconds a program overwrites or deletes the files that it has written; 0:
	// never.
	rewritten float64
}

// level takes every value as measured.
func level() leaning { return leaning{bandwidth: 1, dirtying: 1, costs: 1, content: 1} }

// pace is the factor on the pace of past migrations, which was measured and not assumed.
func (l leaning) pace() float64 { return math.Sqrt(l.costs) }

// model is an input with one leaning.
type model struct {
	in        Input
	costs     Costs
	bandwidth float64 // bytes per second
	rtt       float64
	lean      leaning
	codec     stream.Codec
	wire      float64 // bytes on the link for a byte of memory, the first time
	again     float64 // the same, for pages whose earlier content the target has
	perByte   float64 // seconds of the processor for a byte of memory
}

// outcome is the model's result for a mode.
type outcome struct {
	parts                    Parts   // of handoff, downtime and total time
	downtime, handoff, total float64 // seconds
	bytes, frozen            float64 // on the link; of these memory and state in the freeze
	sourceCPU, targetCPU     float64 // seconds of processor time
	targetMemory             float64 // bytes beyond the container's own
	split, waiting           float64 // seconds
	// seconds that the first work after the handover waits for the pages that it writes
	burst                       float64
	rounds                      int
	converges                   bool
	cpus                        float64 // that the container was left with; 0: all of them
	remote                      float64 // bytes that follow after the handover
	memorySeconds, filesSeconds float64
}

// wait returns how long a client waits for pages after the handover, in the middle of the possible range:
// an answer needs at least the pages that it writes, and at most all that follow.
func (o outcome) wait() float64 { return wait(o.burst, o.split) }

func wait(burst, split float64) float64 { return math.Sqrt(burst * split) }

// pageShare is the target's share of a page's processing time.
const pageShare = 0.6

func newModel(in Input, lean leaning) *model {
	m := &model{in: in, lean: lean, costs: in.Costs, rtt: in.Link.RTTSeconds}
	if m.costs == (Costs{}) {
		m.costs = DefaultCosts()
	}
	m.in.Container.Curve = in.Container.Curve.With(in.Longer)
	bits := in.Link.BandwidthBitsPerSecond
	if bits <= 0 {
		bits = unknownBandwidth
	}
	bits *= lean.bandwidth
	if limit := in.Demands.Settings.BandwidthLimit; limit > 0 {
		bits = min(bits, limit)
	}
	m.bandwidth = bits / 8 * carried
	m.chooseCodec()
	m.again = m.wire
	if in.Container.DeltaRatio > 0 {
		m.again = min(m.wire, max(in.Container.DeltaRatio, referenceShare))
	}
	return m
}

// chooseCodec takes the codec with the highest throughput: data connections begin with a guess, and soon
// change to the best codec (stream.Session.Adapt). Of equally good codecs it takes the cheaper one.
func (m *model) chooseCodec() {
	least := math.Inf(1)
	for codec := stream.None; codec <= stream.ZstdBetter; codec++ {
		try := *m
		try.codec = codec
		wire, perByte := try.onWire(), try.processor()
		if seconds := max(wire/m.bandwidth, perByte); seconds < 0.98*least {
			least = seconds
			m.codec, m.wire, m.perByte = codec, wire, perByte
		}
	}
}

const (
	// unknownBandwidth is that of a usual link, used if nothing is known.
	unknownBandwidth = 100e6
	// carried is the pages' share of the bytes that a probe measured: the rest is frames, records of TLS,
	// segments.
	carried = 0.95
	// referenceShare is the size on the wire of a page that is zero, or has the content of another: 16
	// bytes or so of 4096.
	referenceShare = 0.005
)

// onWire returns the bytes on the link for a byte of memory.
func (m *model) onWire() float64 {
	c := m.in.Container
	if c.SampledPages == 0 {
		if m.codec == stream.None {
			return 1
		}
		return min(1, usualContent*m.lean.content)
	}
	rest := max(0, 1-c.ZeroShare-c.DuplicateShare)
	ratio := min(1, m.codecRatio(c.Ratio)*m.lean.content)
	return rest*ratio + (1-rest)*referenceShare
}

// usualContent is the share of unknown memory that compression and references leave.
const usualContent = 0.5

// codecRatio returns the codec's ratio for content that zstd's fastest level compresses to ratio.
func (m *model) codecRatio(ratio float64) float64 {
	switch {
	case m.codec == stream.None, ratio > 15.0/16: // incompressible content is sent as it is
		return 1
	case m.codec == stream.S2:
		return min(1, ratio*1.15) // of the half-compressible memory of package stream: 0.60 beside 0.52
	case m.codec >= stream.ZstdDefault:
		return ratio * 0.95
	}
	return ratio
}

// processor returns the source's seconds for a byte, with all the cores that the pipeline gets together.
func (m *model) processor() float64 {
	if pace := m.in.Pace.Rounds; pace > 0 {
		return pace * m.lean.pace()
	}
	source := m.in.Source
	speed := source.PageBytesPerSecond
	if speed <= 0 {
		speed = 1e9
	}
	seconds := 1 / speed
	if rest := 1 - m.in.Container.ZeroShare - m.in.Container.DuplicateShare; m.codec != stream.None &&
		m.in.Container.Ratio < 15.0/16 {
		compress := source.CompressBytesPerSec
		if compress <= 0 {
			compress = usualCompress
		}
		workers := float64(min(max(source.Cores/2, 1), 4))
		seconds = max(seconds, max(rest, 0)/(compress*codecSpeed(m.codec)*workers))
	}
	return seconds * m.lean.costs
}

// usualCompress is the speed of zstd's fastest level in the table of package stream.
const usualCompress = 0.5e9

// codecSpeed is how much faster a codec is than zstd's fastest level, by the table in package stream.
func codecSpeed(codec stream.Codec) float64 {
	switch codec {
	case stream.S2:
		return 3.8
	case stream.ZstdDefault:
		return 0.44
	case stream.ZstdBetter:
		return 0.22
	}
	return 1
}

func (m *model) slowness() float64 {
	slow := m.in.Source.Slowness
	if slow <= 0 {
		slow = 1
	}
	return slow * m.lean.costs
}

// send returns how long so many bytes of memory take.
func (m *model) send(raw, wire float64) float64 { return max(raw*wire/m.bandwidth, raw*m.perByte) }

// written returns how many bytes of pages a container writes within a time with a share of its processor
// time.
func (m *model) written(seconds, share float64) float64 {
	c := m.in.Container
	return min(c.Curve.Within(seconds*share, c.memory())*m.lean.dirtying, c.memory())
}

// more returns the time of dump and restore beyond that of a small container.
func (m *model) more() float64 {
	c, k := m.in.Container, m.costs
	return k.Process*beyondFirst(c.Processes, 1) + k.Thread*beyondFirst(c.Threads, 1) +
		k.Mapping*beyondFirst(c.Mappings, 20) +
		k.Descriptor*beyondFirst(c.Descriptors, 5) + k.Connection*float64(c.Connections)
}

func beyondFirst(n, first int) float64 { return float64(max(0, n-first)) }

// state returns the bytes of the execution state on the link.
func (m *model) state() float64 {
	c, k := m.in.Container, m.costs
	return k.StateBytes + k.StateProcess*beyondFirst(c.Processes, 1) + k.StateRatio*float64(c.ChangedBytes) +
		float64(c.QueuedBytes)
}

// warm returns how long it takes to open the window of a connection for so many bytes, and to measure the
// link: stream.Session.Warm has 300 ms or eight round trips, and ends sooner on short links. For few bytes
// it waits for one round trip, with the bytes that leave at once.
func (m *model) warm(enough float64) float64 {
	if enough <= LittleState {
		return warmWork + m.rtt + firstWindow/m.bandwidth
	}
	all := min(max(0.3, 8*m.rtt), 0.015+9*m.rtt)
	if m.in.Link.BandwidthBitsPerSecond <= 0 {
		return all
	}
	enough = min(enough, m.bandwidth*m.rtt*openFactor)
	return min(all, warmWork+m.rtt*max(1, math.Ceil(math.Log2(enough/firstWindow))))
}

// openFactor is how much larger than the link a window must be so that it holds everything in flight.
const openFactor = 1.25

// ahead returns the window that the first round needs.
func (m *model) ahead() float64 { return max(m.in.Container.memory()/StateShare, LeastState) }

const (
	firstWindow = 14 << 10 // RFC 6928
	warmWork    = 0.005    // seconds, on a link without latency
)

// layers returns the time for the image's layers that the target lacks.
func (m *model) layers() float64 {
	if m.in.Container.MissingLayerBytes == 0 {
		return 0
	}
	return float64(m.in.Container.MissingLayerBytes)/m.bandwidth + 3*m.rtt
}

// copyFiles returns how many bytes of files are left for the freeze, after the copies while the container
// runs, whose time it adds. Its rounds end as the agent's do. Files that are rewritten count anew each
// time: data that is overwritten, or deleted before it is sent, cannot be predicted. So this is the
// maximum, except at the better end, where files are reused as a broker or a log does.
func (m *model) copyFiles(out *outcome) (left float64) {
	c := m.in.Container
	bytes, rate := float64(c.FileTreeBytes), c.FilesChangedPerSecond*m.lean.dirtying
	took := bytes/m.bandwidth + float64(c.FileTreeEntries)*fileEntry*m.slowness()
	out.filesSeconds, out.bytes = took, out.bytes+bytes
	target, before, useless := m.in.Demands.Settings.DowntimeTarget.Seconds()/2, 0.0, 0
	for range mostFileRounds {
		changed := min(rate*m.lean.anew(max(took, 0.1)), bytes)
		took = changed/m.bandwidth + m.rtt
		out.filesSeconds, out.bytes = out.filesSeconds+took, out.bytes+changed
		if useless++; before == 0 || changed <= FileRoundsShrink*before {
			useless = 0
		}
		if before = changed; useless >= FileRoundsPatience || changed/m.bandwidth <= target {
			break
		}
	}
	return min(rate*m.lean.anew(took+m.costs.Prepare+m.rtt), bytes)
}

// anew returns the part of a time in which writing to files makes more data to send.
func (l leaning) anew(seconds float64) float64 {
	if l.rewritten > 0 {
		return min(seconds, l.rewritten)
	}
	return seconds
}

// mostFileRounds ends rounds that hardly shrink: with FileRoundsShrink, 400 GB would be 4 KiB by then.
const mostFileRounds = 80

// fileEntry is the seconds for a file in the first copy: 100,000 files of 1 KiB in 3.6 s ("bench files").
const fileEntry = 30e-6

// roundsSoFar is the model's state between rounds.
type roundsSoFar struct {
	history []memory.RoundStats
	share   float64 // of the processor time that the container had
	since   int
	raw     float64 // of the next round
	wire    float64
	seconds float64
}

// mostRounds ends rounds that would never end.
const mostRounds = 2000

// rounds simulates the rounds of a mode, as memory.Decide ends them.
func (m *model) rounds(out *outcome, mode migration.Mode, frozen float64) *roundsSoFar {
	r := &roundsSoFar{share: 1, raw: m.in.Container.memory(), wire: m.wire}
	if age := m.in.Container.StagedAge; age > 0 {
		r.raw, r.wire = m.written(age, 1), m.again
	}
	for interval := 0.0; len(r.history) < mostRounds; {
		took := m.round(out, r, interval)
		interval = took
		decision := memory.Decide(r.history, m.bandwidth, m.policy(mode, frozen, r))
		r.raw, r.wire = m.written(interval, r.share), m.again
		if decision.Verdict == memory.Continue {
			continue
		}
		out.converges = decision.Verdict == memory.Switch
		if decision.Verdict == memory.Switch || decision.Bounded || !m.slower(out, r, decision) {
			break
		}
	}
	out.rounds = len(r.history)
	return r
}

// round simulates one round of so many bytes.
func (m *model) round(out *outcome, r *roundsSoFar, interval float64) (took float64) {
	took = m.send(r.raw, r.wire) + m.rtt + m.costs.Scan*m.in.Container.memory()
	out.bytes += r.raw * r.wire
	out.sourceCPU += r.raw * m.perByte
	r.seconds += took
	r.history = append(r.history, memory.RoundStats{
		Number: len(r.history), Pages: uint64(r.raw) / uint64(memory.PageSize()),
		SentBytes: uint64(r.raw * r.wire),
		Duration:  duration(took), Interval: duration(interval),
	})
	return took
}

// slower throttles the container, as the agent does, if the user prefers that to a longer freeze.
func (m *model) slower(out *outcome, r *roundsSoFar, decision memory.Decision) bool {
	if m.in.Demands.Settings.OnNoConvergence != migration.Throttle || r.share*m.cpus() <= LeastThrottle {
		return false
	}
	share := ThrottleStep
	if decision.DirtyingRateBytesPerSecond > 0 {
		share = min(share, m.bandwidth/r.wire/2/decision.DirtyingRateBytesPerSecond)
	}
	r.share = max(LeastThrottle/m.cpus(), r.share*share)
	r.since = len(r.history)
	out.cpus = r.share * m.cpus()
	return true
}

func (m *model) cpus() float64 {
	if m.in.Container.CPUs > 0 {
		return m.in.Container.CPUs
	}
	return 1
}

func (m *model) policy(mode migration.Mode, frozen float64, r *roundsSoFar) memory.Policy {
	policy := RoundsPolicy(mode, m.in.Demands.Settings, duration(frozen))
	policy.Since = r.since
	if r.share < 1 {
		policy.Patience = 1
	}
	return policy
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
