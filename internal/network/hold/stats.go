package hold

import "net/netip"

// Stats counts a hold's packets so far. Held packets are forwarded, dropped (the queue was full, or the
// kernel refused them) or still queued.
type Stats struct {
	Address            netip.Addr `json:"address"`
	HeldPackets        int64      `json:"held_packets"`
	HeldBytes          int64      `json:"held_bytes"`
	ForwardedPackets   int64      `json:"forwarded_packets"`
	ForwardedBytes     int64      `json:"forwarded_bytes"`
	DroppedPackets     int64      `json:"dropped_packets"`
	DroppedBytes       int64      `json:"dropped_bytes"`
	QueuedPackets      int64      `json:"queued_packets"`
	QueuedBytes        int64      `json:"queued_bytes"`
	LatePackets        int64      `json:"late_packets"` // came to the queue after the route was switched
	LongestHoldSeconds float64    `json:"longest_hold_seconds"`
}

// Stats returns the hold's figures so far.
func (h *Hold) Stats() Stats {
	if h == nil {
		return Stats{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	stats := h.stats
	stats.QueuedPackets, stats.QueuedBytes, _ = h.queue.size()
	return stats
}
