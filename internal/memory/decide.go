package memory

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Verdict says what comes after a round.
type Verdict int

// Verdicts of Decide.
const (
	Continue Verdict = iota // another round reduces the downtime
	Switch                  // the rest fits the budget
	// the rest does not fit, and another round does not help: the user's policy decides
	NotConverging
)

func (v Verdict) String() string {
	switch v {
	case Continue:
		return "continue"
	case Switch:
		return "switch"
	default:
		return "not converging"
	}
}

// Policy bounds the rounds.
type Policy struct {
	Budget    time.Duration // maximum freeze of the container for its memory
	Overhead  time.Duration // freeze that everything else takes anyway
	MaxRounds int           // 0: as many as help
	Timeout   time.Duration // of all rounds together; 0: none
	// Since is the first round that shows how the container writes now. Before it, the container was slowed
	// down less.
	Since int
	// Patience is the number of rounds for which the expected downtime may stay the same; 0: three.
	Patience int
	// Within is the number of further rounds in which the rest must come to fit, if each is as much smaller
	// as the best of the last ones was; otherwise no more are made. It is for memory that can follow after
	// the container was handed over. 0: any number, as long as the rounds get smaller.
	Within int
}

// Decision is the result of Decide, with its reason.
type Decision struct {
	Verdict                    Verdict
	ExpectedDowntime           time.Duration // with a switch now
	DirtyingRateBytesPerSecond float64       // in the last round
	Reason                     string
	// NotConverging because no more rounds or time are allowed: nothing is left to try
	Bounded bool
}

const (
	// shrinkRounds is the number of rounds in which the expected downtime must have shrunk by shrinkFactor,
	// unless the policy says otherwise. One is not enough, because programs work in bursts.
	shrinkRounds = 3
	shrinkFactor = 0.9
	// mostRatios is the maximum number of rounds used to estimate the factor by which rounds get smaller.
	mostRatios = 2
)

// Decide decides what to do after the rounds so far, of which there is at least one. bandwidth is that of
// the link in bytes per second. Decide is a pure function.
func Decide(history []RoundStats, bandwidth float64, policy Policy) Decision {
	last := history[len(history)-1]
	expected := expectedDelta(history, bandwidth)
	d := Decision{
		ExpectedDowntime:           policy.Overhead + expected,
		DirtyingRateBytesPerSecond: last.DirtyingRate(),
	}
	total := time.Duration(0)
	for _, r := range history {
		total += r.Duration
	}
	recent, patience := history[min(policy.Since, len(history)-1):], cmp.Or(policy.Patience, shrinkRounds)
	switch {
	case expected <= policy.Budget:
		d.Verdict, d.Reason = Switch, fmt.Sprintf("the rest takes %s, %s are allowed", rounded(expected),
			rounded(policy.Budget))
	case policy.MaxRounds > 0 && len(history) >= policy.MaxRounds:
		d.Verdict, d.Bounded, d.Reason = NotConverging, true,
			fmt.Sprintf("%d rounds are done, and the rest takes %s", len(history), rounded(expected))
	case policy.Timeout > 0 && total+last.Duration/2 > policy.Timeout:
		d.Verdict, d.Bounded, d.Reason = NotConverging, true,
			fmt.Sprintf("the timeout of %s has passed, and the rest takes %s", policy.Timeout,
				rounded(expected))
	case stalled(recent, bandwidth, patience):
		d.Verdict, d.Reason = NotConverging,
			fmt.Sprintf("the rest takes %s and does not shrink", rounded(expected))
	case policy.Within > 0 && expectedAfter(policy.Within, recent, bandwidth,
		min(patience, mostRatios)) > policy.Budget:
		d.Verdict, d.Reason = NotConverging, fmt.Sprintf("the rest takes %s, and would take more than "+
			"%s after %d more rounds", rounded(expected), rounded(policy.Budget), policy.Within)
	default:
		d.Verdict, d.Reason = Continue, fmt.Sprintf("the rest takes %s", rounded(expected))
	}
	return d
}

// rounded rounds a duration for messages.
func rounded(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Microsecond)
}

// expectedDelta is an upper bound of the time for sending what has been written since the last round began.
//
// Nobody has measured that, but the last round found what was written in its interval and had not left
// before it began. In a shorter time, no more pages are written than in a longer one; in a time n times as
// long, at most n times as many. So if the container goes on as before, the delta is at most what the last
// round found, times the ratio of its duration to its interval, and not more than all memory.
func expectedDelta(history []RoundStats, bandwidth float64) time.Duration {
	last := history[len(history)-1]
	bytes := float64(last.SentBytes)
	if last.Interval > 0 && last.Duration > last.Interval {
		bytes *= last.Duration.Seconds() / last.Interval.Seconds()
	}
	most := 0.0
	for _, r := range history {
		most = max(most, float64(r.SentBytes))
	}
	return transfer(min(bytes, most), bandwidth)
}

// transfer is how long this many bytes take. Without a known bandwidth it is infinite, unless there are
// none.
func transfer(bytes, bandwidth float64) time.Duration {
	if bytes == 0 {
		return 0
	}
	seconds := bytes / bandwidth
	if math.IsNaN(seconds) || seconds < 0 || seconds > math.MaxInt64/1e9/2 {
		return math.MaxInt64 / 2
	}
	return time.Duration(seconds * 1e9)
}

// stalled reports that the last rounds have not reduced the expected downtime.
func stalled(history []RoundStats, bandwidth float64, rounds int) bool {
	n := len(history)
	if n <= rounds {
		return false
	}
	before, since := expectedDelta(history[:n-rounds], bandwidth), time.Duration(math.MaxInt64)
	for i := n - rounds + 1; i <= n; i++ {
		since = min(since, expectedDelta(history[:i], bandwidth))
	}
	return float64(since) > shrinkFactor*float64(before)
}

// expectedAfter is how long the rest would take after this many more rounds, if each is as much smaller as
// the best of the last ratios ones. It is zero if there were fewer.
func expectedAfter(more int, history []RoundStats, bandwidth float64, ratios int) time.Duration {
	n := len(history)
	if n <= ratios {
		return 0
	}
	best, before := 1.0, expectedDelta(history[:n-ratios], bandwidth)
	for i := n - ratios + 1; i <= n; i++ {
		now := expectedDelta(history[:i], bandwidth)
		if before > 0 {
			best = min(best, float64(now)/float64(before))
		}
		before = now
	}
	return time.Duration(float64(before) * math.Pow(best, float64(more)))
}
