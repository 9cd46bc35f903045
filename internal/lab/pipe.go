package lab

import (
	"math/rand/v2"
	"time"

	"github.com/godwit/godwit/internal/units"
)

// minQueueTime is the minimum queue of a link in time: routers at the edge have this much and more.
const minQueueTime = 50 * time.Millisecond

// minQueueBytes is the minimum queue of a link in bytes, so that slow links hold a few packets.
const minQueueBytes = 32 << 10

// maxHeldBytes bounds the memory of one direction; only an unlimited link with a long delay comes near it.
const maxHeldBytes = 128 << 20

// pipe is one direction of a link: a serialiser at a rate, a queue in front of it, and a delay behind it.
// It has no clock of its own and does no I/O. Times are nanoseconds of any clock that does not go back.
type pipe struct {
	shape   Link
	free    int64 // when the serialiser has sent everything in it
	last    int64 // when the last packet leaves; none leaves before it
	held    fifo
	random  *rand.Rand
	counted Counters
}

// Counters count the traffic of one direction of a link.
type Counters struct {
	Packets      uint64 `json:"packets"` // segments as they would be on a real wire
	Bytes        uint64 `json:"bytes"`   // with Ethernet headers
	LostPackets  uint64 `json:"lost_packets"`
	QueueDrops   uint64 `json:"queue_drops"`
	DroppedDown  uint64 `json:"dropped_down"`
	BufferedNow  int    `json:"buffered_bytes_now"`
	ReceiveFails uint64 `json:"receive_failures"` // the receiving interface accepted no more
}

func newPipe(shape Link, seed uint64) *pipe {
	return &pipe{shape: shape, random: rand.New(rand.NewPCG(seed, 0x676f64776974))}
}

// set changes the link while packets are in it. A link that goes down loses them, as a cut cable would.
func (p *pipe) set(shape Link, now int64) {
	if shape.Down {
		p.counted.DroppedDown += uint64(p.held.count())
		p.held.clear()
	}
	if shape.BandwidthBitsPerSecond != p.shape.BandwidthBitsPerSecond && p.free > now {
		p.free = rescale(p.free-now, p.shape.BandwidthBitsPerSecond, shape.BandwidthBitsPerSecond) + now
	}
	p.shape = shape
}

// rescale converts a backlog in time from one rate to another.
func rescale(backlog, from, to int64) int64 {
	if from == units.Unlimited || to == units.Unlimited {
		return 0
	}
	return int64(float64(backlog) * float64(from) / float64(to))
}

// admit accepts a packet that arrived now. It decides whether the packet is lost, and when it leaves.
func (p *pipe) admit(now int64, f frame, data []byte) {
	if p.shape.Down {
		p.counted.DroppedDown += uint64(f.segments)
		return
	}
	start := max(now, p.free)
	if start-now > p.queueTime() || p.held.bytes() > maxHeldBytes {
		p.counted.QueueDrops += uint64(f.segments)
		return
	}
	p.free = start + p.serialisation(f.wireBytes)
	// A lost packet still uses the wire.
	if p.shape.Loss > 0 && p.random.Float64() < p.shape.Loss {
		p.counted.LostPackets += uint64(f.segments)
		return
	}
	p.last = max(p.last, p.free+p.delay())
	p.counted.Packets += uint64(f.segments)
	p.counted.Bytes += uint64(f.wireBytes)
	p.held.push(p.last, data)
}

func (p *pipe) serialisation(bytes int) int64 {
	return int64(wireTime(p.shape, bytes))
}

// queueTime returns how long a packet may wait for the serialiser: a bandwidth-delay product, as in
// routers, and at least 50 ms or a few packets.
func (p *pipe) queueTime() int64 {
	return max(int64(p.shape.RTT), int64(minQueueTime), p.serialisation(minQueueBytes))
}

// delay returns half of the RTT, with a uniform variation of half of the jitter either way.
func (p *pipe) delay() int64 {
	d := int64(p.shape.RTT) / 2
	if p.shape.Jitter > 0 {
		d += int64((p.random.Float64()*2 - 1) * float64(p.shape.Jitter) / 2)
	}
	return max(d, 0)
}

// due returns the next packet that is due by now. It is valid until the next call to admit.
func (p *pipe) due(now int64) ([]byte, bool) {
	at, ok := p.held.next()
	if !ok || at > now {
		return nil, false
	}
	return p.held.pop(), true
}
