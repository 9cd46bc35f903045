package stream

import "time"

// shortestForMore is the round trip below which one connection is enough: its window of some MiB
// holds what a link of 10 Gbit/s does.
const shortestForMore = 3 * time.Millisecond

// limitedShare of the time in which a connection had something to send, spent waiting for the
// window of the receiver or for room at the sender, says that one more would be of use. What waits
// for the congestion window does not count: that is the link.
const limitedShare = 0.3

// WantsMore tells whether one more connection would get more through, by what the kernel says of
// one at two moments.
func WantsMore(before, now Transport) bool {
	busy, limited := now.Busy-before.Busy, now.Limited-before.Limited
	return now.RTT >= shortestForMore && busy > 0 && limited.Seconds() > limitedShare*busy.Seconds()
}
