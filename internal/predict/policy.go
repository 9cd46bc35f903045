package predict

import (
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// How a container is slowed down that writes faster than it can be sent.
const (
	// LeastThrottle is with how little it is left, in processors. If that does not help, nothing does.
	LeastThrottle = 0.01
	// ThrottleStep is the least by which each step slows it down.
	ThrottleStep = 0.7
)

// CatchUpRounds bounds the rounds after all else is prepared.
const CatchUpRounds = 5

// How rounds of files end that do not get less.
const (
	// a round that leaves more than this part of what the one before left has not helped
	FileRoundsShrink   = 0.8
	FileRoundsPatience = 2 // so many of them in a row, and more will not help either
)

// What the window of a data connection is opened for, before anything leaves that must not wait.
const (
	// StateShare is which part of a container's memory leaves at once at most, mostly: what is left
	// of it when it is compressed.
	StateShare = 4
	// LeastState is that of a small container with some processes. A window holds it after two round trips.
	LeastState = 48 << 10
	// StateMargin is by how much more room is made than is foretold. What does not fit would make
	// the freeze a round trip longer, and each doubling of the window makes what comes before it
	// one longer.
	StateMargin = 1.5
	// LittleState leaves within so few round trips that it does not matter what the link would
	// carry, or in which codec.
	LittleState = stream.Little
)

// RoundsWithin is in how many more rounds what is left must come to fit, if it can follow as well:
// of rounds that become smaller by a third each there are 18 in which a freeze of a minute comes
// down to 50 ms, which send two minutes' worth again.
const RoundsWithin = 6

// SwitchoverTime is kept of a migration's time limit for what comes after the rounds.
const SwitchoverTime = time.Second

// RoundsPolicy is how the rounds of a mode end when a container is frozen for all but its memory for so long.
func RoundsPolicy(mode migration.Mode, settings migration.Settings, frozen time.Duration) memory.Policy {
	policy := memory.Policy{
		Budget: max(settings.DowntimeTarget-frozen, settings.DowntimeTarget/4), Overhead: frozen,
		MaxRounds: settings.MaxRounds,
	}
	if mode == migration.Hybrid {
		// what is left follows; more rounds only send it again
		policy.Patience, policy.Within = 1, RoundsWithin
	}
	if settings.Timeout > 0 {
		policy.Timeout = max(settings.Timeout-SwitchoverTime, settings.Timeout/2)
	}
	return policy
}
