package pager

import (
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// measured is what has happened since the filler's start.
type measured struct {
	start     time.Time
	lastFault atomic.Int64 // nanoseconds since start
	counts    counts
	waits     waits
	latencies latencies
	fetched   latencies // of these, those of pages that were still at the source
}

type counts struct {
	faults, zeros, forks, remaps, removes, unmaps, retries, gone atomic.Int64
	died, completed, ignored, lost                               atomic.Int64
}

// since returns the present time, relative to the filler's start like all its times.
func (m *measured) since() time.Duration { return time.Since(m.start) }

// pressed reports whether processes have just waited for pages.
func (m *measured) pressed() bool {
	return m.counts.faults.Load() > 0 && m.since()-time.Duration(m.lastFault.Load()) < pressure
}

// tell copies the measurements into a report.
func (m *measured) tell(r *memory.FillReport) {
	r.LostPages = m.counts.lost.Load()
	r.FaultedPages, r.ZeroPages = m.counts.faults.Load(), m.counts.zeros.Load()
	r.FaultMedianSeconds, r.FaultP99Seconds, r.FaultMaximumSeconds = m.latencies.summary()
	r.FetchedPages = m.fetched.count()
	r.FetchMedianSeconds, r.FetchP99Seconds, r.FetchMaximumSeconds = m.fetched.summary()
	all, one := m.waits.until(m.since())
	r.WaitedSeconds, r.WaitingSeconds = all.Seconds(), one.Seconds()
	r.Forks, r.Remaps = m.counts.forks.Load(), m.counts.remaps.Load()
	r.Removes, r.Unmaps = m.counts.removes.Load(), m.counts.unmaps.Load()
	r.Retries, r.GonePages = m.counts.retries.Load(), m.counts.gone.Load()
}
