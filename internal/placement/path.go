package placement

import (
	"slices"
	"time"
)

// upcoming returns the stops that are still to come. A stop whose deadline is past still counts, until the
// next stop's deadline is past, too.
func (p Policy) upcoming(s Situation) []Stop {
	stops := p.Path
	for len(stops) > 1 && !s.Now.Before(stops[1].Deadline) {
		stops = stops[1:]
	}
	return slices.DeleteFunc(slices.Clone(stops), func(stop Stop) bool { return stop.Node == s.Node })
}

func (p Policy) decidePath(s Situation, stops []Stop) Decision {
	d := Decision{Targets: p.targets(s, stops)}
	for _, c := range p.unwanted(func(node string) bool {
		return slices.ContainsFunc(stops, func(stop Stop) bool { return stop.Node == node })
	}) {
		d.Drop = append(d.Drop, c.Node)
	}
	for i, t := range d.Targets {
		if !t.due(s) || !s.node(t.Node).Reachable || !p.mayTry(t.Node, s.Now) {
			continue
		}
		c := p.At(t.Node)
		switch {
		case !c.whole():
			d.Live, d.Rate = t.Node, p.spread(s, t)
			return d
		case i > 0:
			continue // the copy is there, and a nearer node brings it up to date
		}
		d.Live = t.Node
		if made := p.makeBetween(s, d.Targets); made != nil {
			d.Live, d.Rate = made.Node, p.spread(s, *made)
			return d
		}
		d.Round, d.Rate = p.roundDue(s, t, c), p.limited(0)
		return d
	}
	return d
}

// targets returns for each stop when its copy begins, at which node that will be, and whether it will be in
// time.
func (p Policy) targets(s Situation, stops []Stop) []Target {
	targets := make([]Target, len(stops))
	latest := stops[len(stops)-1].Deadline
	for i, stop := range slices.Backward(stops) {
		t := &targets[i]
		*t = Target{Node: stop.Node, Deadline: stop.Deadline, Need: s.node(stop.Node).Need, by: stop.Deadline}
		latest = minTime(latest, t.Deadline)
		if whole := p.At(t.Node).whole(); whole && (i > 0 || s.Live == t.Node) {
			continue
		}
		wanted := seconds(slack*t.Need.High) + lead
		if leg := legTo(stops, i); i > 0 && seconds(tight*t.Need.High)+lead <= leg {
			wanted = min(wanted, leg) // the previous stop has time for it
		} else if i > 0 { // and for the next stop's copy to be live again
			latest = minTime(latest, stops[0].Deadline.Add(-lead-seconds(3*s.node(stops[0].Node).Need.High)))
		}
		t.by = latest
		latest = latest.Add(-wanted)
		t.Begin = latest
		if i > 0 && !latest.Before(stops[i-1].Deadline) {
			t.From = stops[i-1].Node
		}
	}
	done := s.Now // when the copies made from here are expected to be complete
	for i := range targets {
		t := &targets[i]
		switch {
		case p.At(t.Node).whole():
			t.Outlook = There
		case t.From != "":
			t.judge(stops[i-1].Deadline)
		case !s.node(t.Node).Reachable:
			t.Outlook = Unreachable
		default:
			t.judge(done)
			done = done.Add(seconds(t.Need.Seconds))
		}
	}
	return targets
}

// legTo returns the time between the deadlines of a stop and the previous one.
func legTo(stops []Stop, i int) time.Duration {
	if i == 0 {
		return 0
	}
	return stops[i].Deadline.Sub(stops[i-1].Deadline)
}

// judge compares a deadline with the prediction for work that begins then.
func (t *Target) judge(begin time.Time) {
	switch late := begin.Add(seconds(t.Need.Seconds)).Sub(t.Deadline); {
	case late > 0:
		t.Outlook, t.Late = Late, late
	case begin.Add(seconds(t.Need.High)).After(t.Deadline):
		t.Outlook = MayBeLate
	default:
		t.Outlook = InTime
	}
}

// due reports whether it is time for the target's copy. A copy that has begun goes on, even if less remains
// to be done.
func (t Target) due(s Situation) bool { return s.Live == t.Node || !s.Now.Before(t.Begin) }

// makeBetween returns a later stop whose copy has to be made from here, if the next stop's copy is still up
// to date at its deadline: that copy has to be live again in time.
func (p Policy) makeBetween(s Situation, targets []Target) *Target {
	next := targets[0]
	for i, t := range targets[1:] {
		end := s.Now.Add(seconds(t.Need.High + 2*next.Need.High))
		if s.Now.Before(next.Deadline) && !end.Before(p.lastRound(s, next)) {
			continue
		}
		if t.due(s) && !p.At(t.Node).whole() && s.node(t.Node).Reachable && p.mayTry(t.Node, s.Now) {
			return &targets[i+1]
		}
	}
	return nil
}

// lastRound returns when the copy at the next stop is brought up to date before its deadline.
func (p Policy) lastRound(s Situation, t Target) time.Time {
	return t.Deadline.Add(-lead - seconds(s.node(t.Node).Need.High))
}

// roundDue reports whether the copy at the next stop should be brought up to date now.
func (p Policy) roundDue(s Situation, t Target, c *Copy) bool {
	if !s.Now.Before(t.Deadline) {
		return c.rested(s.Now, pauseAfter, rest)
	}
	return !s.Now.Before(p.lastRound(s, t)) && c.rested(s.Now, pauseBefore, 0)
}

// spread returns the rate that completes a copy half way to its deadline. There is no limit if that exceeds
// the link's bandwidth, or if more was already sent than predicted.
func (p Policy) spread(s Situation, t Target) float64 {
	left := t.by.Sub(s.Now) - lead
	rate := 0.0
	if left > 0 && t.Need.Bytes > 0 {
		rate = max(t.Need.Bytes*8/(left.Seconds()/2), leastRate)
	}
	if bandwidth := s.node(t.Node).Bandwidth; bandwidth > 0 && rate > 0.8*bandwidth {
		rate = 0
	}
	return p.limited(rate)
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
