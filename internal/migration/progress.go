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

	// Of a pre-copy: its rounds so far, and what the last of them says.
	Rounds                  int     `json:"rounds"`
	ExpectedDowntimeSeconds float64 `json:"expected_downtime_seconds"` // if the switchover were now
	DirtyingRate            float64 `json:"dirtying_rate_bytes_per_second"`

	// Of files that are copied ahead: the rounds so far, and what files would take of the downtime
	// if the switchover were now.
	FileRounds           int     `json:"file_rounds"`
	ExpectedFilesSeconds float64 `json:"expected_files_seconds"` // 0: not known

	// What failed and is tried again until it works, and for how long; empty: nothing. At which
	// node the container runs is decided then.
	Waiting        string  `json:"waiting,omitempty"`
	WaitingSeconds float64 `json:"waiting_seconds,omitempty"`

	// Push is set as long as the source has pages of a container that runs at the target.
	Push *Push `json:"drain,omitempty"`
}

// Estimate fills in the time that is left, from what is left and the rate.
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

// Meter estimates a rate from counts taken now and then. Half of what it says is about the last
// second. The zero value is ready.
type Meter struct {
	at    time.Time
	done  int64
	rate  float64
	known bool
}

// Observe notes how much is done, and returns the rate in bytes per second.
func (m *Meter) Observe(at time.Time, done int64) float64 {
	const (
		remember = 1.0  // seconds after which an observation counts half
		shortest = 0.05 // seconds: what is measured over less says little
		first    = 1.0  // seconds: at the beginning the buffers on the way fill, much faster than the way is
	)
	seconds := at.Sub(m.at).Seconds()
	if m.at.IsZero() || seconds < 0 || done < m.done {
		m.at, m.done = at, done // the first, or the clock or the count was set back
		return m.rate
	}
	if seconds < shortest {
		return m.rate
	}
	latest := float64(done-m.done) / seconds
	weight := seconds / (seconds + remember)
	if !m.known {
		if latest == 0 {
			m.at = at // nothing has begun to move yet
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
