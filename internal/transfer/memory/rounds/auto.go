package rounds

import (
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// Auto is what rounds go by in a migration whose mode was chosen for the user.
type Auto struct {
	Demands  predict.Demands
	Began    time.Time
	Forecast predict.Forecast // of that mode
}

// waitOver is how long a client may wait if what is left follows; see predict.
func (a *Auto) waitOver(left, rtt time.Duration, rate float64) time.Duration {
	if a == nil {
		return 0
	}
	return a.Forecast.WaitOver(left, rtt, rate)
}

// handover is how long it takes from the end of the rounds until the container runs at the target,
// but for its downtime: what is prepared takes a tenth of a second and some round trips, and
// opening the connections for pages that follow takes some.
func handover(link migration.LinkSeen) time.Duration {
	const work, roundTrips = 150 * time.Millisecond, 8
	return work + time.Duration(roundTrips*link.RTTSeconds*float64(time.Second))
}

// bound has the rounds end in time, and before more was sent than may be.
func (a *Auto) bound(policy *memory.Policy, history []memory.RoundStats, sent uint64, began time.Time,
	link migration.LinkSeen) {
	if a == nil {
		return
	}
	if a.Demands.Deadline > 0 {
		left := a.Demands.Deadline - began.Sub(a.Began) - handover(link)
		if left = max(left, 1); policy.Timeout == 0 || left < policy.Timeout {
			policy.Timeout = left
		}
	}
	last := history[len(history)-1]
	// the next round, and what is left then
	if most := uint64(a.Demands.MaxBytes); most > 0 && sent+2*last.SentBytes > most {
		policy.MaxRounds = len(history)
	}
}

// instead says what to do with rounds that do not converge, when the user has not.
func (a *Auto) instead(chosen migration.NoConvergence, d memory.Decision, following, target time.Duration,
	tooLong string) (migration.NoConvergence, string) {
	if a == nil || chosen != migration.StopAndCopy {
		return chosen, ""
	}
	wait := fmt.Sprintf("clients are expected to wait up to %s, and up to %s if memory followed",
		predict.Seconds(d.ExpectedDowntime.Seconds()), predict.Seconds(following.Seconds()))
	switch {
	case a.Demands.NoPostCopy:
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
func (m *Rounds) hurry() (done func()) {
	auto := m.auto
	if auto == nil || auto.Demands.Deadline == 0 || auto.Demands.NoPostCopy {
		return func() {}
	}
	left := auto.Demands.Deadline - time.Since(auto.Began) - handover(m.figures.Link())
	timer := time.AfterFunc(max(left, 0), func() {
		if why := m.split.Refuses(); why != "" {
			m.figures.Decided(fmt.Sprintf("auto: the container must run at the target within %s, but %s",
				auto.Demands.Deadline, why))
			return
		}
		// or the rounds are just over
		_ = m.config.Turn.Ask(fmt.Sprintf("auto: the container must run at the target within %s",
			auto.Demands.Deadline))
	})
	return func() { timer.Stop() }
}
