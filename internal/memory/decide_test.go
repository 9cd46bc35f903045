package memory

import (
	"math"
	"testing"
	"time"
)

const mebibyte = 1 << 20

// history makes rounds of the given sizes, each sent at a bandwidth right after the one before.
func history(bandwidth float64, bytes ...uint64) []RoundStats {
	var all []RoundStats
	for i, b := range bytes {
		r := RoundStats{Number: i, Pages: b / 4096, SentBytes: b,
			Duration: time.Duration(float64(b) / bandwidth * 1e9)}
		if i > 0 {
			r.Interval = all[i-1].Duration
		}
		all = append(all, r)
	}
	return all
}

func TestDecide(t *testing.T) {
	const bandwidth = 100 * mebibyte
	policy := Policy{Budget: 100 * time.Millisecond, Overhead: 50 * time.Millisecond}
	for name, c := range map[string]struct {
		history   []RoundStats
		bandwidth float64
		policy    Policy
		want      Verdict
		downtime  time.Duration
	}{
		"all of it fits": {history(bandwidth, 5*mebibyte), bandwidth, policy, Switch,
			100 * time.Millisecond},
		"the first round": {history(bandwidth, 1024*mebibyte), bandwidth, policy, Continue,
			10290 * time.Millisecond},
		"it shrinks": {history(bandwidth, 1024*mebibyte, 300*mebibyte, 80*mebibyte), bandwidth, policy,
			Continue, 850 * time.Millisecond},
		"it fits": {history(bandwidth, 1024*mebibyte, 80*mebibyte, 8*mebibyte), bandwidth, policy,
			Switch, 130 * time.Millisecond},
		"nothing is left": {history(bandwidth, 1024*mebibyte, 0), bandwidth, policy, Switch,
			50 * time.Millisecond},
		"it stays": {history(bandwidth, 1024*mebibyte, 500*mebibyte, 490*mebibyte, 495*mebibyte,
			490*mebibyte), bandwidth, policy, NotConverging, 4950 * time.Millisecond},
		"two rounds differ": {history(bandwidth, 1024*mebibyte, 500*mebibyte, 490*mebibyte), bandwidth,
			policy, Continue, 4950 * time.Millisecond},
		"rounds are done": {history(bandwidth, 1024*mebibyte, 500*mebibyte), bandwidth,
			Policy{Budget: policy.Budget, MaxRounds: 2}, NotConverging, 5 * time.Second},
		"time is over": {history(bandwidth, 1024*mebibyte, 500*mebibyte), bandwidth,
			Policy{Budget: policy.Budget, Timeout: 15 * time.Second}, NotConverging, 5 * time.Second},
		"they would take too many": {history(bandwidth, 1720*mebibyte, 976*mebibyte), bandwidth,
			Policy{Budget: policy.Budget, Patience: 1, Within: 6}, NotConverging, 9760 * time.Millisecond},
		"the rest cannot follow": {history(bandwidth, 1720*mebibyte, 976*mebibyte), bandwidth,
			Policy{Budget: policy.Budget, Patience: 1}, Continue, 9760 * time.Millisecond},
		"they are few": {history(bandwidth, 1720*mebibyte, 400*mebibyte), bandwidth,
			Policy{Budget: policy.Budget, Patience: 1, Within: 6}, Continue, 4 * time.Second},
		"the best of two counts": {history(bandwidth, 1720*mebibyte, 300*mebibyte, 290*mebibyte), bandwidth,
			Policy{Budget: policy.Budget, Within: 6}, Continue, 2900 * time.Millisecond},
		"not even the best of two": {history(bandwidth, 1720*mebibyte, 976*mebibyte, 768*mebibyte), bandwidth,
			Policy{Budget: policy.Budget, Within: 6}, NotConverging, 7680 * time.Millisecond},
		"one says little": {history(bandwidth, 1720*mebibyte, 976*mebibyte), bandwidth,
			Policy{Budget: policy.Budget, Within: 6}, Continue, 9760 * time.Millisecond},
		"no bandwidth known": {history(bandwidth, mebibyte), 0, policy, Continue,
			math.MaxInt64/2 + 50*time.Millisecond},
	} {
		got := Decide(c.history, c.bandwidth, c.policy)
		if got.Verdict != c.want || (got.ExpectedDowntime-c.downtime).Abs() > 10*time.Millisecond ||
			got.Reason == "" {
			t.Errorf("%s: %+v, want %v and a downtime of %s", name, got, c.want, c.downtime)
		}
	}
}

// TestDecideIsSafe simulates containers that write to a number of pages at a rate: the expected
// downtime is never less than the real one, and the rounds end.
func TestDecideIsSafe(t *testing.T) {
	const bandwidth, memory = 100 * mebibyte, 1024 * mebibyte
	policy := Policy{Budget: 100 * time.Millisecond}
	for _, rate := range []float64{0, 1, 10, 50, 90, 99, 101, 150, 1000} { // MiB/s
		for _, hot := range []float64{1, 8, 20, 200, 1024} { // MiB that are written repeatedly
			written := func(d time.Duration) uint64 {
				return uint64(
					hot * mebibyte * (1 - math.Exp(-rate*d.Seconds()/hot)))
			}
			rounds := history(bandwidth, memory)
			for {
				last := rounds[len(rounds)-1]
				d := Decide(rounds, bandwidth, policy)
				truth := transfer(float64(written(last.Duration)), bandwidth)
				if d.ExpectedDowntime < truth-time.Microsecond {
					t.Fatalf("%v MiB/s on %v MiB, round %d: expected %s, would be %s", rate, hot, last.Number,
						d.ExpectedDowntime, truth)
				}
				if d.Verdict == Switch && truth > policy.Budget || len(rounds) > 100 {
					t.Fatalf("%v MiB/s on %v MiB: %+v after %d rounds", rate, hot, d, len(rounds))
				}
				if d.Verdict == NotConverging && rate < 0.8*bandwidth/mebibyte {
					t.Fatalf("%v MiB/s on %v MiB does not converge: %+v", rate, hot, d)
				}
				if d.Verdict != Continue {
					break
				}
				found := written(last.Duration)
				rounds = append(rounds, RoundStats{Number: len(rounds), SentBytes: found, Pages: found / 4096,
					Duration: transfer(float64(found), bandwidth), Interval: last.Duration})
			}
		}
	}
}

// TestRoundsWithin simulates the same containers with memory that may follow. A rest that fits after a few
// rounds still does, and one that would need many is not sent repeatedly before it follows.
func TestRoundsWithin(t *testing.T) {
	const bandwidth, memory = 100 * mebibyte, 1024 * mebibyte
	saved := 0.0
	for _, rate := range []float64{0, 1, 10, 30, 50, 70, 90, 99, 150} { // MiB/s
		for _, hot := range []float64{1, 8, 20, 200, 1024} { // MiB that are written repeatedly
			simulate := func(within int) (verdict Verdict, rounds []RoundStats, sent uint64) {
				rounds = history(bandwidth, memory)
				for sent = rounds[0].SentBytes; ; sent += rounds[len(rounds)-1].SentBytes {
					d := Decide(rounds, bandwidth,
						Policy{Budget: 100 * time.Millisecond, Patience: 1, Within: within})
					if d.Verdict != Continue {
						return d.Verdict, rounds, sent
					}
					last := rounds[len(rounds)-1].Duration
					found := uint64(hot * mebibyte * (1 - math.Exp(-rate*last.Seconds()/hot)))
					rounds = append(rounds, RoundStats{Number: len(rounds), SentBytes: found,
						Duration: transfer(float64(found), bandwidth), Interval: last})
				}
			}
			before, many, most := simulate(0)
			verdict, rounds, sent := simulate(6)
			if before == Switch && len(many) <= 6 && verdict != Switch {
				t.Errorf("%v MiB/s on %v MiB fitted after %d rounds, and now %v after %d", rate,
					hot, len(many), verdict, len(rounds))
			}
			if sent > most {
				t.Errorf("%v MiB/s on %v MiB: %d bytes, were %d", rate, hot, sent, most)
			}
			saved = max(saved, 1-float64(sent)/float64(most))
		}
	}
	if saved < 0.3 {
		t.Errorf("at most %.0f %% of the bytes are saved", 100*saved)
	}
}
