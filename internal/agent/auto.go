package agent

import (
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// handover is how long it takes from the end of the rounds until the container runs at the target,
// but for its downtime: what is prepared takes a tenth of a second and some round trips, and
// opening the connections for pages that follow takes some.
func handover(link migration.LinkSeen) time.Duration {
	const work, roundTrips = 150 * time.Millisecond, 8
	return work + seconds(roundTrips*link.RTTSeconds)
}

// bound has the rounds end in time, and before more was sent than may be.
func (a *autoMode) bound(policy *memory.Policy, history []memory.RoundStats, sent uint64, began time.Time,
	link migration.LinkSeen) {
	if a == nil {
		return
	}
	if a.demands.Deadline > 0 {
		left := a.demands.Deadline - began.Sub(a.began) - handover(link)
		if left = max(left, 1); policy.Timeout == 0 || left < policy.Timeout {
			policy.Timeout = left
		}
	}
	last := history[len(history)-1]
	// the next round, and what is left then
	if most := uint64(a.demands.MaxBytes); most > 0 && sent+2*last.SentBytes > most {
		policy.MaxRounds = len(history)
	}
}

// instead says what to do with rounds that do not converge, when the user has not.
func (a *autoMode) instead(chosen migration.NoConvergence, d memory.Decision, following, target time.Duration,
	tooLong string) (migration.NoConvergence, string) {
	if a == nil || chosen != migration.StopAndCopy {
		return chosen, ""
	}
	wait := fmt.Sprintf("clients are expected to wait up to %s, and up to %s if memory followed",
		predict.Seconds(d.ExpectedDowntime.Seconds()), predict.Seconds(following.Seconds()))
	switch {
	case a.demands.NoPostCopy:
		return chosen, "auto: " + wait + ", but --no-post-copy rules that out"
	case tooLong != "":
		return chosen, "auto: " + wait + ", but " + tooLong
	case predict.ClearlyBetter(d.ExpectedDowntime.Seconds(), following.Seconds(), target.Seconds()):
		return migration.TurnHybrid, "auto: the rest of the memory is sent after the handover, which is " +
			"clearly better: " + wait
	}
	return chosen, "auto: " + wait + ": not enough gain to split its state over two nodes"
}

// hurry hands the container over when the time is over, also in the middle of a round. It returns
// what ends that.
func (s *source) hurry() (done func()) {
	if s.auto == nil || s.auto.demands.Deadline == 0 || s.auto.demands.NoPostCopy {
		return func() {}
	}
	left := s.auto.demands.Deadline - time.Since(s.auto.began) - handover(s.move.tracker.Link())
	timer := time.AfterFunc(max(left, 0), func() {
		if why := s.split.refuses(); why != "" {
			s.move.tracker.Decided(fmt.Sprintf("auto: the container must run at the target within %s, but %s",
				s.auto.demands.Deadline, why))
			return
		}
		// or the rounds are just over
		_ = s.turn.ask(fmt.Sprintf("auto: the container must run at the target within %s",
			s.auto.demands.Deadline))
	})
	return func() { timer.Stop() }
}
