package migration

import "time"

// Progress tells how far a migration is.
type Progress struct {
	Migration  string  `json:"migration"`
	Phase      string  `json:"phase"`
	State      State   `json:"state"`
	DoneBytes  int64   `json:"done_bytes"`  // before compression
	TotalBytes int64   `json:"total_bytes"` // expected; 0: not known
	Rate       float64 `json:"rate_bytes_per_second"`
	Seconds    float64 `json:"seconds"`      // since the request
	LeftTime   float64 `json:"left_seconds"` // estimated; 0: not known
}

// Meter estimates a rate from counts taken now and then. Half of what it says is about the last second.
type Meter struct {
	at   time.Time
	done int64
	rate float64
}

// Observe notes how much is done, and returns the rate in bytes per second.
func (m *Meter) Observe(at time.Time, done int64) float64 {
	const remember = 1.0 // seconds after which an observation counts half
	if m.at.IsZero() {
		m.at, m.done = at, done
		return 0
	}
	seconds := at.Sub(m.at).Seconds()
	if seconds < 0.05 {
		return m.rate
	}
	latest := float64(done-m.done) / seconds
	weight := seconds / (seconds + remember)
	if m.rate == 0 {
		weight = 1
	}
	m.rate += (latest - m.rate) * weight
	m.at, m.done = at, done
	return m.rate
}
