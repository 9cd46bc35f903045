package hold

import "time"

const (
	// freeBurst packets are sent at once: as many as senders with one request each have waiting, and as
	// socket buffers and link queues take without loss.
	freeBurst = 128
	// replaySpeed is the factor by which the remaining packets are sent faster than they came. Sent at
	// once, ten thousand datagrams overflow any receiver's buffer, and a loss there is no better than a
	// drop here. A packet that came some time into the hold waits at most an eighth of that time longer.
	// Its total wait is never longer than that of a packet that came at the beginning.
	replaySpeed = 8
)

// pacer decides when held packets are sent.
type pacer struct {
	bitsPerSecond int64
	count         int
	start         time.Time // when the first packet was sent
	first         time.Time // when the first packet had come
	next          time.Time // when the rate allows the next packet
}

// newPacer returns a pacer with a rate; 0 is unlimited.
func newPacer(bitsPerSecond int64) *pacer { return &pacer{bitsPerSecond: bitsPerSecond} }

// wait returns how much longer a packet that came at the given time must wait.
func (p *pacer) wait(_ int, came, now time.Time) time.Duration {
	due := p.next
	if p.count >= freeBurst {
		if replay := p.start.Add(came.Sub(p.first) / replaySpeed); replay.After(due) {
			due = replay
		}
	}
	return due.Sub(now)
}

// sent notes that a packet is being sent.
func (p *pacer) sent(length int, came, now time.Time) {
	if p.count == 0 {
		p.start, p.first = now, came
	}
	p.count++
	if p.bitsPerSecond > 0 {
		if now.After(p.next) {
			p.next = now
		}
		p.next = p.next.Add(time.Duration(int64(length) * 8 * int64(time.Second) / p.bitsPerSecond))
	}
}
