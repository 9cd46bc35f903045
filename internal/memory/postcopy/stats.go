package postcopy

import (
	"sync"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// Stats counts what a side of a post-copy push has done, over all connections.
type Stats struct {
	Connections int64 // how often it began or continued

	// Pages that a side has sent or received on the urgent and the push connection, including zero and
	// changed pages. Bytes are those of their content, or of the changes to it, before compression.
	UrgentPages int64
	UrgentBytes int64
	PushedPages int64
	PushedBytes int64
	ZeroPages   int64
	// ChangedPages were sent as changes to what the target has had.
	ChangedPages int64

	Faults         int64 // requested pages
	UnderWayFaults int64 // of these, those that had already left; only the source knows
	LeftPages      int64 // source: not sent on this connection; target: not here
	Elapsed        time.Duration
	Complete       bool // the target has everything
}

// tally keeps Stats that are changed and read by several goroutines.
type tally struct {
	mu    sync.Mutex
	stats Stats
	began time.Time
	ended time.Time
}

func (t *tally) update(change func(*Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.stats)
}

func (t *tally) connected() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Connections++
	if t.began.IsZero() {
		t.began = time.Now()
	}
}

func (t *tally) complete() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stats.Complete {
		t.stats.Complete, t.ended = true, time.Now()
	}
}

// carried counts a run of this many bytes that was sent or received.
func (t *tally) carried(run memory.Run, urgent bool, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pages := int64(run.Pages)
	if run.Zero {
		t.stats.ZeroPages += pages
	}
	if urgent {
		t.stats.UrgentPages += pages
		t.stats.UrgentBytes += int64(bytes)
		return
	}
	t.stats.PushedPages += pages
	t.stats.PushedBytes += int64(bytes)
}

// changed counts a page that was sent as a change.
func (t *tally) changed(run memory.Run, urgent bool, bytes int) {
	t.carried(run, urgent, bytes)
	t.update(func(s *Stats) { s.ChangedPages++ })
}

func (t *tally) snapshot() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	switch {
	case t.began.IsZero():
	case s.Complete:
		s.Elapsed = t.ended.Sub(t.began)
	default:
		s.Elapsed = time.Since(t.began)
	}
	return s
}
