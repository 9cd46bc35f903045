package staging

import "time"

// Pacer tells when the next round of a copy that is kept fresh is due: at low priority, so that it
// takes a tenth of the time at most.
type Pacer struct{ next time.Time }

const (
	minPause   = 2 * time.Second
	pauseRatio = 9 // of a round's duration
)

// Due reports whether a round is due.
func (p *Pacer) Due(now time.Time) bool { return !now.Before(p.next) }

// Next is when the next round is due.
func (p *Pacer) Next() time.Time { return p.next }

// Did notes a round.
func (p *Pacer) Did(began, ended time.Time) {
	p.next = ended.Add(max(minPause, pauseRatio*ended.Sub(began)))
}
