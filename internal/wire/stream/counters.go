package stream

import (
	"maps"
	"sync"
)

// Count is how much has been transferred. Raw is what sections hold; wire is what it took, with headers.
type Count struct {
	RawBytes  uint64
	WireBytes uint64
}

// Counters of a session, by kind of section.
type Counters struct {
	Sent     map[string]Count
	Received map[string]Count
	// SentWireBytes and ReceivedWireBytes are all bytes, with pings and probes.
	SentWireBytes     uint64
	ReceivedWireBytes uint64
}

// Plus adds what another session of the same peers has transferred.
func (c Counters) Plus(other Counters) Counters {
	return Counters{
		Sent: plus(c.Sent, other.Sent), Received: plus(c.Received, other.Received),
		SentWireBytes:     c.SentWireBytes + other.SentWireBytes,
		ReceivedWireBytes: c.ReceivedWireBytes + other.ReceivedWireBytes,
	}
}

func plus(a, b map[string]Count) map[string]Count {
	sum := maps.Clone(a)
	for kind, count := range b {
		sum[kind] = Count{RawBytes: sum[kind].RawBytes + count.RawBytes,
			WireBytes: sum[kind].WireBytes + count.WireBytes}
	}
	return sum
}

type counters struct {
	mu sync.Mutex
	Counters
}

func newCounters() *counters {
	return &counters{Counters: Counters{Sent: map[string]Count{}, Received: map[string]Count{}}}
}

func (c *counters) snapshot() Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.Counters
	out.Sent, out.Received = maps.Clone(c.Sent), maps.Clone(c.Received)
	return out
}

func (c *counters) wrote(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.SentWireBytes += uint64(bytes)
}

func (c *counters) read(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ReceivedWireBytes += uint64(bytes)
}

func (c *counters) sent(shares []share, wire int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	divide(c.Sent, shares, wire)
}

func (c *counters) received(shares []share, wire int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	divide(c.Received, shares, wire)
}

// share is what one kind of section has in a frame.
type share struct {
	kind string
	raw  int
	all  int // with its records' headers
}

// addShare adds to the last share or begins another; the sections of a frame mostly are of one kind.
func addShare(shares []share, kind string, raw, all int) []share {
	if n := len(shares); n > 0 && shares[n-1].kind == kind {
		shares[n-1].raw += raw
		shares[n-1].all += all
		return shares
	}
	return append(shares, share{kind: kind, raw: raw, all: all})
}

// divide splits the bytes of a frame among the kinds in it, in proportion to what each brought.
func divide(counts map[string]Count, shares []share, wire int) {
	total := 0
	for _, s := range shares {
		total += s.all
	}
	for _, s := range shares {
		part := 0
		if total > 0 {
			part = int(int64(wire) * int64(s.all) / int64(total))
		}
		wire, total = wire-part, total-s.all
		count := counts[s.kind]
		count.RawBytes += uint64(s.raw)
		count.WireBytes += uint64(part)
		counts[s.kind] = count
	}
}
