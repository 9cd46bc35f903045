package stream

import "time"

// shortestForMore is the round trip below which one connection is enough: its window of some MiB holds the
// data in flight on a link of 10 Gbit/s.
const shortestForMore = 3 * time.Millisecond

// limitedShare is the share of a connection's busy time, spent waiting for the receiver's window or for
// room at the sender, above which another connection helps. Waiting for the congestion window does not
// count: that is the link.
const limitedShare = 0.3

// WantsMore reports whether another connection would increase the throughput, from the kernel's view of one
// connection at two moments.
func WantsMore(before, now Transport) bool {
	busy, limited := now.Busy-before.Busy, now.Limited-before.Limited
	return now.RTT >= shortestForMore && busy > 0 && limited.Seconds() > limitedShare*busy.Seconds()
}
