package migration

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// NoConvergence selects what a pre-copy does if its rounds do not reach the downtime target.
type NoConvergence string

// The choices.
const (
	// freeze, and send the rest: the downtime exceeds the target
	StopAndCopy NoConvergence = "stop-and-copy"
	// give the container less and less processor time, then stop and copy
	Throttle   NoConvergence = "throttle"
	GiveUp     NoConvergence = "give-up" // the container stays where it is
	TurnHybrid NoConvergence = "hybrid"  // freeze, and let the rest follow when it runs at the target
)

// Settings are a user's choices for a migration. Only the source uses them. Zero values are defaults.
type Settings struct {
	// DowntimeTarget is how long the container may be frozen, if that is achievable.
	DowntimeTarget time.Duration
	// MaxRounds bounds the rounds of a pre-copy; 0: as many as help.
	MaxRounds int
	// Checkpoints is how many times the files are copied in mode restart while the container runs;
	// 0: as often as helps, until the rest fits; NoCheckpoints: not at all.
	Checkpoints int
	// Timeout bounds everything before the handover; 0: none. Rounds end early enough for a switchover.
	Timeout time.Duration
	// BandwidthLimit is the migration's limit on the link, in bits per second; 0: no limit.
	BandwidthLimit float64
	// OnNoConvergence is what to do when the rounds do not converge.
	OnNoConvergence NoConvergence
	// KeepResidual is how long the source keeps a residual copy of the container's memory, in case the
	// container comes back; 0: not at all.
	KeepResidual time.Duration
	// MaxSplit is for how long both nodes may be needed after the handover; 0: not given.
	MaxSplit time.Duration
	// Spill writes remote pages to the source's disk, encrypted, so that a reboot does not lose them.
	Spill bool
	// NewInodes moves a container even if it has files open whose inodes its programs remember.
	NewInodes bool
	// Volumes are the user's choices for the container's volumes.
	Volumes VolumeWays
}

// Bounds and defaults of the settings.
const (
	DefaultDowntimeTarget = 100 * time.Millisecond
	MaxDowntimeTarget     = time.Hour
	MaxMaxRounds          = 1000
	NoCheckpoints         = -1
	MinBandwidthLimit     = 8e3  // bits per second
	MaxBandwidthLimit     = 1e13 // bits per second
)

// NoConvergences lists a user's choices.
func NoConvergences() []NoConvergence {
	return []NoConvergence{StopAndCopy, Throttle, TurnHybrid, GiveUp}
}

// Complete checks a user's choices, and fills in the defaults.
func (s Settings) Complete() (Settings, error) {
	err := CheckTimeout(s.Timeout)
	if err != nil {
		return s, err
	}
	s.DowntimeTarget = cmp.Or(s.DowntimeTarget, DefaultDowntimeTarget)
	if s.DowntimeTarget < 0 || s.DowntimeTarget > MaxDowntimeTarget {
		return s, fmt.Errorf("downtime target %s: must be more than 0 and at most %s", s.DowntimeTarget,
			MaxDowntimeTarget)
	}
	if s.MaxRounds < 0 || s.MaxRounds > MaxMaxRounds {
		return s, fmt.Errorf("at most %d rounds: must be from 1 to %d, or 0 for as many as help", s.MaxRounds,
			MaxMaxRounds)
	}
	if s.Checkpoints < NoCheckpoints || s.Checkpoints > MaxMaxRounds {
		return s, fmt.Errorf("%d checkpoints: must be from 0 to %d", s.Checkpoints, MaxMaxRounds)
	}
	if err := CheckBandwidthLimit(s.BandwidthLimit); err != nil {
		return s, err
	}
	if err := CheckKeep(s.KeepResidual); err != nil {
		return s, fmt.Errorf("to keep a residual memory copy for %w", err)
	}
	if err := CheckMaxSplit(s.MaxSplit); err != nil {
		return s, err
	}
	if s.Volumes, err = ParseVolumeWays(s.Volumes.items()); err != nil {
		return s, err
	}
	s.OnNoConvergence = cmp.Or(s.OnNoConvergence, StopAndCopy)
	var names []string
	for _, choice := range NoConvergences() {
		if s.OnNoConvergence == choice {
			return s, nil
		}
		names = append(names, string(choice))
	}
	return s, fmt.Errorf("unknown action %q for rounds that do not converge; choose one of: %s",
		bounded(string(s.OnNoConvergence), maxName), strings.Join(names, ", "))
}

// For completes the settings of a migration in a mode.
func (s Settings) For(mode Mode) (Settings, error) {
	if mode == Hybrid {
		if s.OnNoConvergence != "" && s.OnNoConvergence != TurnHybrid {
			return s, fmt.Errorf("mode %s cannot be combined with --on-no-convergence %q: use mode %s",
				Hybrid,
				bounded(string(s.OnNoConvergence), maxName), PreCopy)
		}
		s.OnNoConvergence = TurnHybrid
	}
	if s.Checkpoints != 0 && mode != Restart {
		return s, fmt.Errorf("--checkpoints applies to mode %s, not to %s", Restart, mode)
	}
	if s.MaxSplit != 0 && (mode == Cold || mode == Restart) {
		return s, fmt.Errorf("--max-split does not apply to mode %s, which never needs both nodes", mode)
	}
	if s.Spill && (mode == Cold || mode == Restart) {
		return s, fmt.Errorf("--spill does not apply to mode %s, in which no page stays at the source "+
			"after the handover",
			mode)
	}
	if s.NewInodes && mode == Restart {
		return s, fmt.Errorf("--new-inodes does not apply to mode %s, in which no file stays open", mode)
	}
	return s.Complete()
}

// CheckBandwidthLimit refuses an unreasonable limit, in bits per second. Zero is none.
func CheckBandwidthLimit(limit float64) error {
	if limit == 0 || limit >= MinBandwidthLimit && limit <= MaxBandwidthLimit {
		return nil
	}
	return fmt.Errorf("bandwidth limit of %g bits per second: must be between %g and %g, or 0 for none",
		limit, MinBandwidthLimit, MaxBandwidthLimit)
}
