package rounds

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// ErrNotConverging is told when the user wants that rather than a longer downtime.
var ErrNotConverging = errors.New("the container writes its memory faster than it can be sent")

// act does what a decision says, and tells whether the rounds are over.
func (m *Rounds) act(ctx context.Context, decision memory.Decision) (done bool, err error) {
	rounds := m.figures.Rounds()
	switch decision.Verdict {
	case memory.Continue:
		return false, nil
	case memory.Switch:
		m.fits = true
		m.figures.Decided(fmt.Sprintf("switchover after %d rounds: %s", rounds, decision.Reason))
		return true, nil
	case memory.NotConverging:
	}
	settings := m.config.Settings.Get()
	tooLong := m.split.Refuses()
	if tooLong != "" && settings.OnNoConvergence == migration.TurnHybrid && !m.pages.Leaving() {
		return m.whole(decision, tooLong), nil
	}
	chosen, why := m.auto.instead(settings.OnNoConvergence, decision, m.following(decision),
		settings.DowntimeTarget, tooLong)
	if why != "" && !m.pages.Leaving() {
		m.figures.Decided(why)
	}
	if chosen == migration.TurnHybrid || m.pages.Leaving() {
		m.pages.Leave()
		m.figures.Decided(fmt.Sprintf("handed over after %d rounds, the rest of the memory is sent "+
			"afterwards: %s", rounds,
			decision.Reason))
		return true, nil
	}
	if chosen == migration.GiveUp {
		return true, fmt.Errorf("%w: %s, and --on-no-convergence is give-up; allow a longer "+
			"--downtime-target, or choose --on-no-convergence %s",
			ErrNotConverging, decision.Reason, migration.StopAndCopy)
	}
	if chosen == migration.Throttle && !decision.Bounded {
		slower, err := m.throttle.slower(ctx, decision.DirtyingRateBytesPerSecond, m.rawThroughput())
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return true, err
		}
		if slower {
			m.since = len(m.history)
			return false, nil
		}
	}
	m.figures.Decided(fmt.Sprintf("%s after %d rounds: %s", migration.StopAndCopy, rounds, decision.Reason))
	return true, nil
}

// whole reports whether the rounds are over of memory that must not follow yet. They go on as those
// of a pre-copy, because fewer bytes may be left then.
func (m *Rounds) whole(decision memory.Decision, tooLong string) (done bool) {
	if m.mode == migration.Hybrid {
		m.mode = migration.PreCopy
		decision = m.decide()
	}
	if decision.Verdict == memory.Continue {
		m.figures.Decided("more rounds: " + tooLong)
		return false
	}
	m.fits = decision.Verdict == memory.Switch
	m.figures.Decided(fmt.Sprintf("%s after %d rounds: %s; %s", migration.StopAndCopy,
		m.figures.Rounds(), decision.Reason, tooLong))
	return true
}
