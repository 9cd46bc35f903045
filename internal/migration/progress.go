package migration

import "time"

// Progress describes how far a migration has come.
type Progress struct {
	Migration  string  `json:"migration"`
	Phase      string  `json:"phase"`
	State      State   `json:"state"`
	DoneBytes  int64   `json:"done_bytes"`  // before compression
	TotalBytes int64   `json:"total_bytes"` // expected; 0: not known
	Rate       float64 `json:"rate_bytes_per_second"`
	Seconds    float64 `json:"seconds"`      // since the request
	LeftTime   float64 `json:"left_seconds"` // estimated; 0: not known

	// Of a pre-copy: the number of rounds so far, and measurements of the last round.
	Rounds                  int     `json:"rounds"`
	ExpectedDowntimeSeconds float64 `json:"expected_downtime_seconds"` // if the switchover were now
	DirtyingRate            float64 `json:"dirtying_rate_bytes_per_second"`

	// Of files that are copied ahead: the rounds so far, and the files' share of the downtime if the
	// switchover were now.
	FileRounds           int     `json:"file_rounds"`
	ExpectedFilesSeconds float64 `json:"expected_files_seconds"` // 0: not known

	// Waiting names the operation that failed and is retried until it works, and for how long; empty: there
	// is none. The node that runs the container is already decided then.
	Waiting        string  `json:"waiting,omitempty"`
	WaitingSeconds float64 `json:"waiting_seconds,omitempty"`

	// Push is set as long as the source has remote pages of a container that runs at the target.
	Push *Push `json:"drain,omitempty"`
}

// Estimate fills in the time that is left, from the remaining bytes and the rate.
func (p Progress) Estimate() Progress {
	const most = 30 * 24 * 3600 // seconds; beyond it, saying nothing is more honest
	p.LeftTime = 0
	if left := p.TotalBytes - p.DoneBytes; p.DoneBytes >= 0 && left > 0 && p.Rate > 0 {
		if seconds := float64(left) / p.Rate; seconds <= most {
			p.LeftTime = seconds
		}
	}
	return p
}

// Meter estimates a rate from occasional counts. Half of its estimate is about the last second. The zero
// value is ready.
type Meter struct {
	at    time.Time
	done  int64
	rate  float64
	known bool
}

// Observe notes the progress so far, and returns the rate in bytes per second.
func (m *Meter) Observe(at time.Time, done int64) float64 {
	const (
		remember = 1.0  // seconds after which an observation counts half
		shortest = 0.05 // seconds: shorter measurements say little
		first    = 1.0  // seconds: at the beginning, buffers on the path fill quickly
	)
	seconds := at.Sub(m.at).Seconds()
	if m.at.IsZero() || seconds < 0 || done < m.done {
		m.at, m.done = at, done // first observation, or the clock or the count was set back
		return m.rate
	}
	if seconds < shortest {
		return m.rate
	}
	latest := float64(done-m.done) / seconds
	weight := seconds / (seconds + remember)
	if !m.known {
		if latest == 0 {
			m.at = at // no data has moved yet
			return 0
		}
		if seconds < first {
			return 0
		}
		weight = 1
	}
	m.known = true
	m.rate += (latest - m.rate) * weight
	m.at, m.done = at, done
	return m.rate
}
