package predict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// Choice is a mode, and the reasons for it.
type Choice struct {
	Mode migration.Mode `json:"mode"`
	Why  []string       `json:"why"` // with numbers
	// Unmet are the demands that no mode is expected to meet.
	Unmet []string `json:"unmet,omitempty"`
}

const (
	// A smaller difference does not count: the prediction is less exact than that, and a client does not
	// notice.
	sameFactor = 1.1
	sameSlack  = 0.010 // seconds
	// A mode whose result may be smaller by this factor is worth a try.
	fraction = 4
	// A mode that splits the state has to be better by more than this.
	clearlyFactor = 1.2
	clearlySlack  = 0.020 // seconds
	// notMuchLonger is the factor of total time that meeting the downtime target may cost.
	notMuchLonger = 2
	// longEnough is the seconds for which a program must have been watched before its writes in a long
	// round can be predicted.
	longEnough = 10
	// window is the number of bytes that need no acknowledgement on a new connection: ten segments of an
	// Ethernet (RFC 6928).
	window = 14600
)

// Choose takes the mode in which clients wait least for an answer (Interruption), and among equally good
// modes the one with the least total time, of those that meet the demands. Modes that have the state on two
// nodes for a while are taken only if they are clearly better: the others exceed the downtime target, and
// clients wait much less. A restart is never chosen: it loses the contents of memory.
//
// A deadline or downtime target that no mode is expected to meet is given up and reported as unmet. The
// user's prohibitions are never given up.
func Choose(all []Prediction, demands Demands) (Choice, error) {
	var can []Prediction
	for _, p := range all {
		if p.Possible && p.Mode != migration.Restart {
			can = append(can, p)
		}
	}
	if len(can) == 0 {
		return Choice{}, fmt.Errorf("no mode is possible: %s", reasons(all))
	}
	var choice Choice
	can = choice.punctual(can, demands.Deadline)
	if can = choice.affordable(can, demands.MaxBytes); len(can) == 0 {
		return Choice{}, fmt.Errorf("at most %s may be sent, and all modes need more: %s",
			Size(float64(demands.MaxBytes)), costs(all))
	}
	choice.take(can, demands)
	for _, p := range all {
		if !p.Possible && (splits(p.Mode) || demands.Refused[p.Mode] != "" && p.Mode != migration.Restart) {
			choice.Why = append(choice.Why, fmt.Sprintf("not %s: %s", p.Mode, p.Why))
		}
	}
	return choice, nil
}

// take chooses among the modes that meet the demands.
func (c *Choice) take(can []Prediction, demands Demands) {
	all := can
	can = worthwhile(can)
	splitting := slices.DeleteFunc(slices.Clone(can), func(p Prediction) bool { return !splits(p.Mode) })
	whole := slices.DeleteFunc(slices.Clone(can), func(p Prediction) bool { return splits(p.Mode) })
	target := demands.Settings.DowntimeTarget.Seconds()
	if len(whole) == 0 {
		whole, splitting = splitting, nil
	}
	chosen := best(whole, target)
	if len(splitting) > 0 {
		other := best(splitting, target)
		now, then := chosen.Interruption.Expected, other.Interruption.Expected
		if chosen.Downtime.Expected > target && ClearlyBetter(now, then, target) {
			c.Why = append(c.Why, fmt.Sprintf("its state is on two nodes for about %s, because that is "+
				"clearly better: clients wait up to %s, and in mode %s up to %s",
				Seconds(other.Split.Expected), Seconds(then), chosen.Mode, Seconds(now)))
			chosen = other
		}
	}
	c.Mode = chosen.Mode
	c.explain(chosen, all)
	if target > 0 && chosen.Downtime.Expected > target {
		c.Unmet = append(c.Unmet, fmt.Sprintf("the downtime target of %s: the expected downtime is %s",
			demands.Settings.DowntimeTarget, Seconds(chosen.Downtime.Expected)))
	}
}

// worthwhile leaves out the modes that take longer than cold without a benefit: they keep less than a
// window out of the freeze, whatever was learnt of the time of their steps. A mode that may keep more out
// of the freeze stays.
func worthwhile(can []Prediction) []Prediction {
	i := slices.IndexFunc(can, func(p Prediction) bool { return p.Mode == migration.Cold })
	if i < 0 {
		return can
	}
	cold := can[i]
	return slices.DeleteFunc(slices.Clone(can), func(p Prediction) bool {
		return p.Total.Expected > sameFactor*cold.Total.Expected+sameSlack &&
			cold.FrozenBytes.Expected-p.FrozenBytes.Expected < window &&
			cold.FrozenBytes.Expected-p.FrozenBytes.Low < fraction*window
	})
}

// ClearlyBetter reports whether clients wait so much less in another mode that a split of the state is
// acceptable.
func ClearlyBetter(now, then, target float64) bool {
	return now > target && now > clearlyFactor*then+clearlySlack
}

// affordable keeps the modes that send no more than most bytes.
func (c *Choice) affordable(can []Prediction, most int64) []Prediction {
	if most <= 0 {
		return can
	}
	return slices.DeleteFunc(slices.Clone(can), func(p Prediction) bool {
		if p.Bytes.Expected <= float64(most) {
			return false
		}
		c.Why = append(c.Why, fmt.Sprintf("not %s: at most %s may be sent, but %s are expected", p.Mode,
			Size(float64(most)), Size(p.Bytes.Expected)))
		return true
	})
}

// costs lists the bytes that each possible mode would send.
func costs(all []Prediction) string {
	text := ""
	for _, p := range all {
		if p.Possible && p.Mode != migration.Restart {
			text += fmt.Sprintf("%s %s, ", p.Mode, Size(p.Bytes.Expected))
		}
	}
	return strings.TrimSuffix(text, ", ")
}

// punctual keeps the modes that end in time, or, if none does, the fastest.
func (c *Choice) punctual(can []Prediction, deadline time.Duration) []Prediction {
	if deadline <= 0 {
		return can
	}
	late := func(p Prediction) bool { return p.Handoff.Expected > deadline.Seconds() }
	left := slices.DeleteFunc(slices.Clone(can), late)
	if len(left) == 0 {
		fastest := slices.MinFunc(can,
			func(a, b Prediction) int { return cmp.Compare(a.Handoff.Expected, b.Handoff.Expected) })
		c.Unmet = append(c.Unmet, fmt.Sprintf("the deadline of %s: the handoff is expected to take %s "+
			"in mode %s, and longer in all others", deadline,
			Seconds(fastest.Handoff.Expected), fastest.Mode))
		return []Prediction{fastest}
	}
	for _, p := range can {
		if late(p) {
			c.Why = append(c.Why, fmt.Sprintf("not %s: the deadline is %s, but the handoff is expected "+
				"to take %s",
				p.Mode, deadline, Seconds(p.Handoff.Expected)))
		}
	}
	return left
}

// best returns the mode in which clients wait least, or an equally good one with the least total time.
// Among equally good modes, a mode in which clients may wait only a fraction of that time is better: memory
// that is copied ahead may or may not be written again, and if it is, only time is lost. A mode that misses
// the downtime target is not as good as one that meets it and does not take much longer. If the total times
// are equally good, too, the mode that splits the state for less time is better, provided that the writes
// within such a time are known: a client waits for pages meanwhile, but memory that is written more often
// than observed makes rounds longer. Otherwise the mode in which clients wait least is better, as where
// most of the time goes to layers of the image.
func best(all []Prediction, target float64) Prediction {
	same := asGood(all, sameFactor, func(p Prediction) float64 { return p.Interruption.Expected })
	same = asGood(same, fraction, func(p Prediction) float64 { return p.Interruption.Low })
	same = slices.DeleteFunc(slices.Clone(same), func(p Prediction) bool {
		return p.Downtime.Expected > target && slices.ContainsFunc(same, func(other Prediction) bool {
			return other.Downtime.Expected <= target && other.Total.Expected < notMuchLonger*p.Total.Expected
		})
	})
	same = asGood(same, sameFactor, func(p Prediction) float64 { return p.Total.Expected })
	return slices.MinFunc(same, func(a, b Prediction) int {
		sooner := cmp.Compare(a.Total.Expected, b.Total.Expected)
		switch {
		case !splits(a.Mode) || !splits(b.Mode):
			return cmp.Or(cmp.Compare(a.Interruption.Expected, b.Interruption.Expected), sooner)
		case min(a.watched, b.watched) < longEnough:
			return sooner
		}
		return cmp.Or(cmp.Compare(a.Split.Expected, b.Split.Expected), sooner)
	})
}

// asGood keeps the modes that exceed the least one by at most a factor.
func asGood(all []Prediction, factor float64, seconds func(Prediction) float64) []Prediction {
	least := slices.MinFunc(all, func(a, b Prediction) int { return cmp.Compare(seconds(a), seconds(b)) })
	return slices.DeleteFunc(slices.Clone(all),
		func(p Prediction) bool { return seconds(p) > factor*seconds(least)+sameSlack })
}

// explain records why a mode was chosen, and what the others would have cost.
func (c *Choice) explain(chosen Prediction, can []Prediction) {
	expected := fmt.Sprintf("mode %s: downtime %s, clients wait up to %s, total %s, %s to send are expected",
		chosen.Mode,
		spread(chosen.Downtime), Seconds(chosen.Interruption.Expected), Seconds(chosen.Total.Expected),
		Size(chosen.Bytes.Expected))
	c.Why = append([]string{expected}, c.Why...)
	for _, p := range can {
		if p.Mode != chosen.Mode {
			c.Why = append(c.Why, fmt.Sprintf("mode %s: downtime %s, clients wait up to %s, total %s, %s",
				p.Mode,
				Seconds(p.Downtime.Expected), Seconds(p.Interruption.Expected), Seconds(p.Total.Expected),
				Size(p.Bytes.Expected)))
		}
	}
}

func reasons(all []Prediction) string {
	for _, p := range all {
		if !p.Possible {
			return p.Why
		}
	}
	return "none was asked for"
}
