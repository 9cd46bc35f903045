package rounds

import (
	"sync"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// Split bounds how long both nodes are needed after the handover of a migration from this node. It starts
// with the prediction made before the migration; the rounds then measure it again.
type Split struct {
	mu       sync.Mutex
	limit    migration.SplitLimit
	asked    migration.SplitLimit // for a user who asks while the migration runs
	expected time.Duration        // if the handover were now; 0: unknown
	bits     float64              // per second, assumed by the prediction; 0: not predicted
}

// NewSplit starts with the prediction of how long both nodes are needed if all memory follows, over a link of
// that many bits per second; 0: there is none. chosen: the mode was chosen for the user.
func NewSplit(use migration.PostCopyUse, settings migration.Settings, chosen bool, expected time.Duration,
	bits float64) *Split {
	asked, byAuto := migration.SplitLimits(use, settings)
	s := &Split{limit: asked, asked: asked, expected: expected, bits: bits}
	if chosen {
		s.limit = byAuto
	}
	return s
}

// Forbid makes all memory move before the handover, and keeps the reason.
func (s *Split) Forbid(why string) {
	s.limit = migration.SplitLimit{Forbidden: true, By: why}
	s.asked = s.limit
}

// Refuses returns why memory must not follow, as far as is known now; empty: it may follow.
func (s *Split) Refuses() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit.Refuses(s.expected)
}

// Request notes that a user asks for memory to follow: bounds on the automatic choice no longer apply. It
// returns why memory must not follow nevertheless; empty: it may.
func (s *Split) Request() (refusal string) {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.asked.Refuses(s.expected); why != "" {
		return why
	}
	s.limit = s.asked
	return ""
}

// Left notes how long the link needs for the remaining memory.
func (s *Split) Left(took, rtt time.Duration) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected, s.bits = predict.SplitOver(took, rtt), 0
}

// Carries adjusts a prediction that assumed another bandwidth to the measured bandwidth of the link.
func (s *Split) Carries(bits float64) {
	if s == nil || bits <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bits > 0 {
		s.expected, s.bits = time.Duration(float64(s.expected)*s.bits/bits), bits
	}
}
