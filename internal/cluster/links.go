package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/patience"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

const (
	// probeFirst is when an unknown link is measured: not at once, because a migration may measure it
	// first.
	probeFirst = 15 * time.Second
	// ProbeEvery is after how long an unused link is measured again; probePerPeer is the minimum for each
	// node, so that many nodes together do not take more of a link. A probe stays within measureBudget.
	ProbeEvery   = 10 * time.Minute
	probePerPeer = time.Minute
)

// ProbeLinks measures links without a recent measurement, one after the other, and none while a migration
// of this node is under way.
func (p *Peers) ProbeLinks(
	ctx context.Context, busy func() bool, measure func(context.Context, identity.Node) error,
) {
	for patience.Until(ctx, time.Now().Add(probeFirst)) == nil {
		others := p.Others()
		every := max(ProbeEvery, time.Duration(len(others))*probePerPeer)
		for _, node := range others {
			if busy() || !p.wantsProbe(node.Name, every) {
				continue
			}
			if err := measure(ctx, node); err != nil {
				p.log.Debug("link not measured", "node", node.Name, "error", err)
			}
		}
	}
}

// wantsProbe reports whether a node answers and its link was not measured for so long, and notes the
// attempt.
func (p *Peers) wantsProbe(name string, every time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	if known == nil || !known.reachable || time.Since(known.probed) < every || known.bandwidth > 0 &&
		time.Since(known.seen) < every {
		return false
	}
	known.probed = time.Now()
	return true
}

// NoteTransport keeps the kernel's count of retransmitted bytes. Half of the average is about the last
// transfer.
func (p *Peers) NoteTransport(name string, t stream.Transport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	if known == nil || t.SentBytes < leastForLoss {
		return
	}
	known.sent, known.resent = known.sent/2+float64(t.SentBytes), known.resent/2+float64(t.ResentBytes)
}

// leastForLoss is the smallest transfer from which loss is estimated.
const leastForLoss = 64 << 10

// WayTo returns the known properties of the path to a node.
func (p *Peers) WayTo(name string) predict.Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
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
func (p *peer) noteProbe(link stream.Link, at time.Time) {
	if link.Limited {
		p.bandwidth = max(p.bandwidth, link.BandwidthBitsPerSecond)
		return
	}
	if at.Sub(p.seen) > ProbeEvery {
		p.probes = nil
	}
	bits := link.BandwidthBitsPerSecond
	if link.AtLeast && bits < p.bandwidth {
		bits = min(p.bandwidth, mostShort*bits)
	}
	p.probes = predict.Newest(p.probes, bits)
	middle := predict.Median(p.probes)
	if len(p.transfers) == 0 || middle < p.bandwidth/otherLink || middle > p.bandwidth*otherLink {
		p.transfers, p.bandwidth = nil, middle
	}
	p.seen = at
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
func (p *peer) noteTransfer(bitsPerSecond float64, limited bool, at time.Time) {
	if !limited && bitsPerSecond < p.bandwidth {
		return
	}
	if bitsPerSecond < p.bandwidth/otherLink {
		p.transfers, p.probes = nil, nil
	}
	p.transfers = predict.Newest(p.transfers, bitsPerSecond)
	p.bandwidth, p.seen = slices.Max(p.transfers), at // throughput never exceeds the bandwidth
}

// NoteTransfer keeps the throughput of a transfer to a node.
func (p *Peers) NoteTransfer(name string, bitsPerSecond float64, limited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		known.noteTransfer(bitsPerSecond, limited, time.Now())
	}
}

func (p *peer) loss() float64 {
	if p.sent == 0 {
		return 0
	}
	return p.resent / p.sent
}

// noteJitter averages the differences between consecutive round trips (RFC 3550, 6.4.1).
func (p *peer) noteJitter(rtt time.Duration) {
	if p.last > 0 {
		p.jitter += ((rtt - p.last).Abs() - p.jitter) / 16
	}
	p.last = rtt
}

// noteBack keeps another node's measurement of the link from there. It is only a claim, and is limited to
// the fastest possible link.
func (p *Peers) noteBack(name string, bitsPerSecond float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil && bitsPerSecond > 0 &&
		bitsPerSecond <= migration.MaxBandwidthLimit {
		known.back = bitsPerSecond
	}
}
