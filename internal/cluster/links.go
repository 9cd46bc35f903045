package cluster

import (
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Links knows what the links to other nodes carry. It ignores measurements of links to unknown nodes.
type Links struct {
	mu    sync.Mutex
	links map[string]*measuredLink // by the name of the node
}

func newLinks() *Links { return &Links{links: map[string]*measuredLink{}} }

// measuredLink is the link to a node.
type measuredLink struct {
	rtt time.Duration
	// bits per second; 0: not measured. The best transfer, or the median of probes if there were no
	// transfers.
	bandwidth float64
	transfers []float64
	probes    []float64
	// When the bandwidth was measured or an attempt was made, how much round trips differ, the bandwidth
	// from there as that node has measured it, and the recent share of retransmitted bytes.
	seen, probed time.Time
	jitter       time.Duration
	last         time.Duration // round trip
	back         float64
	sent, resent float64
}

// open makes room for the measurements of the link to a node.
func (l *Links) open(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.links[name] == nil {
		l.links[name] = &measuredLink{}
	}
}

// forget drops the link to a node that is removed.
func (l *Links) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.links, name)
}

// noteHello takes the round trip of a hello.
func (l *Links) noteHello(name string, rtt time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.links[name]; known != nil {
		known.noteHello(rtt)
	}
}

func (m *measuredLink) noteHello(rtt time.Duration) {
	if m.rtt == 0 || rtt < m.rtt {
		m.rtt = rtt
	} else {
		m.rtt += (rtt - m.rtt) / 8 // follow a longer path, not a busy moment
	}
	m.noteJitter(rtt)
}

// NoteLink keeps a data connection's measurements. Its round trip is the link's; the round trip of a hello
// includes the work of two agents.
func (l *Links) NoteLink(name string, link stream.Link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.links[name]
	if known == nil {
		return
	}
	if link.BandwidthBitsPerSecond > 0 {
		known.noteProbe(link, time.Now())
	}
	if link.RTT > 0 {
		known.rtt = link.RTT
	}
}

// Link returns the known round trip and bandwidth of the path to a node.
func (l *Links) Link(name string) (rtt time.Duration, bandwidth float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.links[name]
	if known == nil {
		return 0, 0
	}
	return known.rtt, known.bandwidth
}

// NoteTransport keeps the kernel's count of retransmitted bytes. Half of the average is about the last
// transfer.
func (l *Links) NoteTransport(name string, t stream.Transport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.links[name]
	if known == nil || t.SentBytes < leastForLoss {
		return
	}
	known.sent, known.resent = known.sent/2+float64(t.SentBytes), known.resent/2+float64(t.ResentBytes)
}

// leastForLoss is the smallest transfer from which loss is estimated.
const leastForLoss = 64 << 10

// WayTo returns the known properties of the path to a node.
func (l *Links) WayTo(name string) predict.Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.links[name]
	if known == nil {
		return predict.Link{}
	}
	link := predict.Link{
		RTTSeconds: known.rtt.Seconds(), JitterSeconds: known.jitter.Seconds(),
		BandwidthBitsPerSecond: known.bandwidth,
		BackBitsPerSecond:      known.back, Loss: known.loss(),
	}
	switch {
	case !known.seen.IsZero():
		link.Seen = time.Since(known.seen).Seconds()
	case known.bandwidth > 0: // known only from a transfer under our own limit: nobody has measured the link
		link.Seen = (2 * ProbeEvery).Seconds()
	}
	return link
}

// noteProbe takes a probe's result. A probe is short, so it may be wrong by half: a transfer's result
// counts more, until probes say that the link has changed. A probe under our own limit gives a lower bound
// of the bandwidth, and nothing else.
//
// Of probes the median counts: one probe that a busy machine has spoilt does not matter, and two that agree
// about a changed link do. Of transfers the best counts.
func (m *measuredLink) noteProbe(link stream.Link, at time.Time) {
	if link.Limited {
		m.bandwidth = max(m.bandwidth, link.BandwidthBitsPerSecond)
		return
	}
	if at.Sub(m.seen) > ProbeEvery {
		m.probes = nil
	}
	bits := link.BandwidthBitsPerSecond
	if link.AtLeast && bits < m.bandwidth {
		bits = min(m.bandwidth, mostShort*bits)
	}
	m.probes = predict.Newest(m.probes, bits)
	middle := predict.Median(m.probes)
	if len(m.transfers) == 0 || middle < m.bandwidth/otherLink || middle > m.bandwidth*otherLink {
		m.transfers, m.bandwidth = nil, middle
	}
	m.seen = at
}

const (
	// mostShort is how much faster a link can be than a probe whose sender was the limit.
	mostShort = 2
	// otherLink is the factor of bandwidth by which a changed link is recognised.
	otherLink = 2
)

// noteTransfer takes a transfer's throughput. If the link was not the limit, the throughput is a lower
// bound of the bandwidth. If it was, and the throughput is much lower than before, the link has changed,
// and earlier results no longer count.
func (m *measuredLink) noteTransfer(bitsPerSecond float64, limited bool, at time.Time) {
	if !limited && bitsPerSecond < m.bandwidth {
		return
	}
	if bitsPerSecond < m.bandwidth/otherLink {
		m.transfers, m.probes = nil, nil
	}
	m.transfers = predict.Newest(m.transfers, bitsPerSecond)
	m.bandwidth, m.seen = slices.Max(m.transfers), at // throughput never exceeds the bandwidth
}

// NoteTransfer keeps the throughput of a transfer to a node.
func (l *Links) NoteTransfer(name string, bitsPerSecond float64, limited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.links[name]; known != nil {
		known.noteTransfer(bitsPerSecond, limited, time.Now())
	}
}

func (m *measuredLink) loss() float64 {
	if m.sent == 0 {
		return 0
	}
	return m.resent / m.sent
}

// noteJitter averages the differences between consecutive round trips (RFC 3550, 6.4.1).
func (m *measuredLink) noteJitter(rtt time.Duration) {
	if m.last > 0 {
		m.jitter += ((rtt - m.last).Abs() - m.jitter) / 16
	}
	m.last = rtt
}

// noteBack keeps another node's measurement of the link from there. It is only a claim, and is limited to
// the fastest possible link.
func (l *Links) noteBack(name string, bitsPerSecond float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.links[name]; known != nil && bitsPerSecond > 0 &&
		bitsPerSecond <= migration.MaxBandwidthLimit {
		known.back = bitsPerSecond
	}
}

// wantsProbe reports whether a link was not measured for so long, and notes the attempt.
func (l *Links) wantsProbe(name string, every time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.links[name]
	if known == nil || time.Since(known.probed) < every || known.bandwidth > 0 &&
		time.Since(known.seen) < every {
		return false
	}
	known.probed = time.Now()
	return true
}

// describe describes the link to a node as it was last measured.
func (l *Links) describe(entry *api.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.links[entry.Name]
	if known == nil {
		return
	}
	entry.RttSeconds, entry.BandwidthBitsPerSecond = known.rtt.Seconds(), known.bandwidth
	entry.JitterSeconds, entry.Loss, entry.BackBitsPerSecond = known.jitter.Seconds(), known.loss(),
		known.back
}
