package predict

import (
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// How to slow down a container that writes faster than the link can send.
const (
	// LeastThrottle is the smallest processor time that throttling leaves, in processors. Less would not
	// help.
	LeastThrottle = 0.01
	// ThrottleStep is the factor by which each step slows the container down at least.
	ThrottleStep = 0.7
)

// CatchUpRounds bounds the rounds after everything else is prepared.
const CatchUpRounds = 5

// How rounds of files that do not shrink end.
const (
	// a round that leaves more than this part of the previous round's remainder has not helped
	FileRoundsShrink   = 0.8
	FileRoundsPatience = 2 // this many of them in a row end the rounds
)

// How far the window of a data connection is opened before anything urgent is sent.
const (
	// StateShare is the usual upper bound of the share of a container's memory that is sent at once, after
	// compression: one in StateShare.
	StateShare = 4
	// LeastState is the state of a small container with some processes. A window holds it after two round
	// trips.
	LeastState = 48 << 10
	// StateMargin is the factor of additional room beyond the prediction. An excess would make the freeze a
	// round trip longer, and each doubling of the window makes the phase before it one longer.
	StateMargin = 1.5
	// LittleState needs so few round trips that neither the link's bandwidth nor the codec matters.
	LittleState = stream.Little
)

// RoundsWithin is in how many more rounds the rest must come to fit, if it can follow as well: if each
// round is smaller by a third, 18 rounds bring a freeze of a minute down to 50 ms, and send two minutes'
// worth again.
const RoundsWithin = 6

// SwitchoverTime is reserved for the switchover in a migration's time limit.
const SwitchoverTime = time.Second

// RoundsPolicy returns the policy for the rounds of a mode, given how long a container is frozen for
// everything except its memory.
func RoundsPolicy(mode migration.Mode, settings migration.Settings, frozen time.Duration) memory.Policy {
	policy := memory.Policy{
		Budget: max(settings.DowntimeTarget-frozen, settings.DowntimeTarget/4), Overhead: frozen,
		MaxRounds: settings.MaxRounds,
	}
	if mode == migration.Hybrid {
		// the rest follows; more rounds would only send it again
		policy.Patience, policy.Within = 1, RoundsWithin
	}
	if settings.Timeout > 0 {
		policy.Timeout = max(settings.Timeout-SwitchoverTime, settings.Timeout/2)
	}
	return policy
}
