package link

import (
	"cmp"

	"github.com/godwit/godwit/internal/wire/stream"
)

// beside is a data connection beside the first one.
type beside struct {
	purpose string
	data    *stream.Session
}

// Seen is what the data connections have got through, in bits per second, the last time that the link was
// the limit; 0: it never was.
func (l *Link) Seen() (bitsPerSecond float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bitsPerSecond = l.data.LinkBitsPerSecond()
	var apart float64
	for _, one := range l.more {
		if one.purpose == l.config.Apart {
			apart = max(apart, one.data.LinkBitsPerSecond())
		} else {
			bitsPerSecond += one.data.LinkBitsPerSecond()
		}
	}
	return max(bitsPerSecond, apart)
}

// Sent is what has gone over all data connections so far.
func (l *Link) Sent() stream.Counters {
	l.mu.Lock()
	counters := l.data.Counters()
	for _, one := range l.more {
		counters = counters.Plus(one.data.Counters())
	}
	l.mu.Unlock()
	if sent, sending := l.config.Layers(); sending {
		counters = counters.Plus(sent)
	}
	return counters
}

// BytesPerSecond is how much gets through: what the link took when it was the limit, or what it was measured
// to carry if it never was. What it took beside layers may be a part of that: they are there before the
// freeze.
func (l *Link) BytesPerSecond() float64 {
	bits := l.Seen()
	_, layers := l.config.Layers()
	if measured := l.config.Figures.Link().BandwidthBitsPerSecond; bits == 0 || layers {
		bits = max(bits, measured)
	}
	if limit := l.config.Settings.Get().BandwidthLimit; limit > 0 {
		bits = min(bits, limit)
	}
	return bits / 8
}

// BitsPerSecond is what the link is known to carry; 0: nothing is known.
func (l *Link) BitsPerSecond() float64 {
	if l.Data() == nil { // this agent was started after the container had been handed over
		return 0
	}
	return cmp.Or(l.Seen(), l.config.Figures.Link().BandwidthBitsPerSecond)
}
