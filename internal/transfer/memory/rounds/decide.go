package rounds

import (
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// decide tells what comes after the rounds so far.
func (m *Rounds) decide() memory.Decision {
	ahead := min(m.ahead, len(m.history)-1)
	policy := predict.RoundsPolicy(m.mode, m.config.Settings.Get(), m.anyway())
	m.auto.bound(&policy, m.history[ahead:], m.config.Link.PageBytes(), m.began, m.figures.Link())
	policy.Since = max(m.since-ahead, 0)
	if patience := m.throttle.patience(); patience > 0 {
		policy.Patience = patience
	}
	d := memory.Decide(m.history[ahead:], m.config.Link.BytesPerSecond(), policy)
	if d.Verdict != memory.Continue || policy.Patience > 0 || !m.restless(ahead) {
		return d
	}
	policy.Patience, policy.Within = 1, predict.RoundsWithin
	sooner := memory.Decide(m.history[ahead:], m.config.Link.BytesPerSecond(), policy)
	if m.mayFollow(sooner) {
		return sooner
	}
	return d
}

// restlessAfter is after how many rounds one that has not helped is enough if the memory may
// follow. Of a container that writes much of its memory all the time one round finds more than
// another, and the best of ten is no better than the best of three.
const restlessAfter = 3

// restless reports whether there were so many, not counting those ahead. Two are enough if nine
// tenths of the memory were written while the first was under way, and the second took as long:
// then the third will not help, either.
func (m *Rounds) restless(ahead int) bool {
	const most = 0.9
	rounds := m.history[ahead:]
	if len(rounds) != restlessAfter-1 || m.config.Partly || ahead > 0 {
		return len(rounds) >= restlessAfter
	}
	first, second := rounds[0], rounds[1]
	return float64(second.Pages) >= most*float64(first.Pages) &&
		second.Duration.Seconds() >= most*second.Interval.Seconds()
}

// mayFollow reports whether the automatic choice would rather have the rest follow than make more rounds.
func (m *Rounds) mayFollow(d memory.Decision) bool {
	settings := m.config.Settings.Get()
	if m.auto == nil || d.Verdict != memory.NotConverging ||
		settings.OnNoConvergence != migration.StopAndCopy {
		return false
	}
	chosen, _ := m.auto.instead(settings.OnNoConvergence, d, m.following(d), settings.DowntimeTarget,
		m.split.Refuses())
	return chosen == migration.TurnHybrid
}

// following is how long a client would wait if what is left followed.
func (m *Rounds) following(d memory.Decision) time.Duration {
	frozen := m.anyway()
	left := max(0, d.ExpectedDowntime-frozen)
	return frozen + m.auto.waitOver(left, m.rtt(),
		d.DirtyingRateBytesPerSecond)
}

// anyway is how long the container will be frozen for all but its memory.
func (m *Rounds) anyway() time.Duration {
	return predict.Overhead + m.config.Files() + m.rtt()
}

// rtt is how long a round trip to the target takes.
func (m *Rounds) rtt() time.Duration {
	return time.Duration(m.figures.Link().RTTSeconds * float64(time.Second))
}

// rawThroughput is how many bytes of memory that is, if pages go on to need as much each as in the
// last round.
func (m *Rounds) rawThroughput() float64 {
	last := m.history[len(m.history)-1]
	if last.SentBytes == 0 {
		return m.config.Link.BytesPerSecond()
	}
	return m.config.Link.BytesPerSecond() * float64(last.Bytes()) / float64(last.SentBytes)
}
