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
	// probeFirst is when a link is measured of which nothing is known: not at once, because there
	// may be a migration that does.
	probeFirst = 15 * time.Second
	// ProbeEvery is after how long a link is measured again that nobody has used; probePerPeer is
	// the least for each node, so that many nodes together do not take more of anybody's link. A
	// probe is within measureBudget.
	ProbeEvery   = 10 * time.Minute
	probePerPeer = time.Minute
)

// ProbeLinks measures the links of which nothing is known, or nothing new, one after the other, and
// none while a migration of this node is under way.
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

// wantsProbe tells whether the link to a node that answers was not measured for so long, and notes
// that it is tried now.
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

// NoteTransport keeps what the kernel says that had to be sent again. Half of what is told is about
// the last transfer.
func (p *Peers) NoteTransport(name string, t stream.Transport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	if known == nil || t.SentBytes < leastForLoss {
		return
	}
	known.sent, known.resent = known.sent/2+float64(t.SentBytes), known.resent/2+float64(t.ResentBytes)
}

// leastForLoss is what has to be sent to tell anything about loss.
const leastForLoss = 64 << 10

// WayTo is what is known of the way to a node.
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
	case known.bandwidth > 0: // only what a limit of ours let through: nobody has measured the link
		link.Seen = (2 * ProbeEvery).Seconds()
	}
	return link
}

// noteProbe takes what a probe has found. It is short, so it may be wrong by half: what a transfer
// has shown counts more, until probes say that the link is another one. What a limit of ours has
// held back is the least that the link has, and says nothing else of it.
//
// Of probes it is the median that counts: one that a busy machine has spoilt does not count, and two
// that agree about a link that has changed do. Of transfers it is the best.
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
	// mostShort is how much more a link can have than a probe has found whose sender was the limit.
	mostShort = 2
	// otherLink is by which factor a link differs from another one.
	otherLink = 2
)

// noteTransfer takes what a transfer got through. If the link was not the limit it is the least
// that the link has. If it was, and much less got through than before, the link is another one, and
// what was seen of the former says nothing of it.
func (p *peer) noteTransfer(bitsPerSecond float64, limited bool, at time.Time) {
	if !limited && bitsPerSecond < p.bandwidth {
		return
	}
	if bitsPerSecond < p.bandwidth/otherLink {
		p.transfers, p.probes = nil, nil
	}
	p.transfers = predict.Newest(p.transfers, bitsPerSecond)
	p.bandwidth, p.seen = slices.Max(p.transfers), at // nothing gets more through than the link carries
}

// NoteTransfer keeps what a transfer to a node has shown.
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

// noteJitter follows how much a round trip differs from the one before (RFC 3550, 6.4.1).
func (p *peer) noteJitter(rtt time.Duration) {
	if p.last > 0 {
		p.jitter += ((rtt - p.last).Abs() - p.jitter) / 16
	}
	p.last = rtt
}

// noteBack keeps what another node says about the link from there. It is only told, and never more
// than any link is.
func (p *Peers) noteBack(name string, bitsPerSecond float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil && bitsPerSecond > 0 &&
		bitsPerSecond <= migration.MaxBandwidthLimit {
		known.back = bitsPerSecond
	}
}
