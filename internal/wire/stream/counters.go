package stream

import (
	"maps"
	"sync"
)

// Count is how much has been transferred. Raw counts the contents of sections; wire counts bytes sent for
// them, with headers.
type Count struct {
	RawBytes  uint64
	WireBytes uint64
}

// Counters of a session, by kind of section.
type Counters struct {
	Sent     map[string]Count
	Received map[string]Count
	// SentWireBytes and ReceivedWireBytes are all bytes, including pings and probes.
	SentWireBytes     uint64
	ReceivedWireBytes uint64
}

// Plus adds the counters of another session of the same peers.
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

// share is the part of a frame that belongs to one kind of section.
type share struct {
	kind string
	raw  int
	all  int // with its records' headers
}

// addShare adds to the last share or begins another; usually all sections of a frame are of one kind.
func addShare(shares []share, kind string, raw, all int) []share {
	if n := len(shares); n > 0 && shares[n-1].kind == kind {
		shares[n-1].raw += raw
		shares[n-1].all += all
		return shares
	}
	return append(shares, share{kind: kind, raw: raw, all: all})
}

// divide divides the bytes of a frame among its kinds, in proportion to their raw bytes.
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
