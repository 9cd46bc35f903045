package migration

import (
	"slices"
	"time"
)

// shortGap is the longest gap between two phases that is not a phase of its own: the agent's own work.
const shortGap = time.Millisecond

// The names of phases that are not steps.
const (
	phaseStop = "stop" // the freeze, until all processes stand still: they still run, so this is no downtime
	phaseWait = "wait" // neither node works on a step: a message travels, or a node waits for somebody
)

// timeline is a migration on the source's clock: when each step ran, and the important instants.
type timeline struct {
	from, to        time.Time
	frozen, resumed time.Time // zero: it did not happen
	source          string
	spans           []placed
}

// placed is a span on the timeline.
type placed struct {
	name, node string
	from, to   time.Time
	// counts only where no other step runs: the receive runs beside everything that the source does
	behind bool
}

func newTimeline(rec Record, facts Facts, at time.Time) *timeline {
	l := &timeline{from: rec.Spec.Started, to: at, source: rec.Spec.Source, frozen: facts.Frozen}
	if l.to.Before(l.from) {
		l.to = l.from // the clock was set back
	}
	if rec.Spec.Side == Target {
		l.place(rec.Spans, rec.Spec.Target, 0)
		l.frozen = time.Time{}
		return l
	}
	l.place(rec.Spans, rec.Spec.Source, 0)
	l.place(rec.PeerSpans, rec.Spec.Target, -facts.Ahead)
	for _, s := range rec.Spans {
		if (s.Phase == string(StepFreeze) || s.Phase == string(StepStop)) && l.frozen.IsZero() {
			l.frozen = s.Start
		}
	}
	if !rec.Resumed.IsZero() && !l.frozen.IsZero() {
		l.frozen = l.clip(l.frozen)
		l.resumed = l.clip(rec.Resumed.Add(-facts.Ahead))
		if l.resumed.Before(l.frozen) {
			l.resumed = l.frozen // the error of the clocks' offset exceeds the downtime
		}
	}
	return l
}

func (l *timeline) place(spans []Span, node string, shift time.Duration) {
	for _, s := range spans {
		from, to := l.clip(s.Start.Add(shift)), l.clip(s.End.Add(shift))
		if from.Before(to) {
			l.spans = append(l.spans, placed{s.Phase, node, from, to, s.Phase == string(StepReceive)})
		}
	}
}

// clip keeps an instant within the migration.
func (l *timeline) clip(t time.Time) time.Time {
	if t.Before(l.from) {
		return l.from
	}
	if t.After(l.to) {
		return l.to
	}
	return t
}

func (l *timeline) since(t time.Time) float64 { return t.Sub(l.from).Seconds() }
func (l *timeline) total() float64            { return l.since(l.to) }
func (l *timeline) downtime() float64         { return l.resumed.Sub(l.frozen).Seconds() }

// down reports whether the container stood still from this instant on.
func (l *timeline) down(t time.Time) bool {
	return !l.resumed.IsZero() && !t.Before(l.frozen) && t.Before(l.resumed)
}

// phases divides the whole time: each instant belongs to the step that began last. The remaining time is
// waiting.
func (l *timeline) phases() []Phase {
	phases := []Phase{}
	for _, p := range l.pieces() {
		if n := len(phases); n > 0 && p.belongsTo(phases[n-1]) {
			phases[n-1].Seconds = p.StartSeconds + p.Seconds - phases[n-1].StartSeconds
		} else {
			phases = append(phases, p)
		}
	}
	return phases
}

// belongsTo reports whether a piece of time continues the phase before it: the same phase, or a piece too
// short to be one of its own.
func (p Phase) belongsTo(before Phase) bool {
	short := (p.Name == phaseWait || p.Name == string(StepReceive)) && p.Seconds <= shortGap.Seconds()
	same := p.Name == before.Name && p.Node == before.Node
	return p.Downtime == before.Downtime && (short || same)
}

// pieces returns the whole time, cut where the step or the downtime changes.
func (l *timeline) pieces() []Phase {
	pieces := []Phase{}
	bounds := l.bounds()
	for i := range len(bounds) - 1 {
		from, to := bounds[i], bounds[i+1]
		name, node := l.owner(from)
		down := l.down(from)
		p := Phase{Name: name, Node: node, StartSeconds: l.since(from), Downtime: down}
		if n := len(pieces); n > 0 && pieces[n-1].Downtime == down && pieces[n-1].Name == name &&
			pieces[n-1].Node == node {
			p = pieces[n-1]
			pieces = pieces[:n-1]
		}
		p.Seconds = l.since(to) - p.StartSeconds
		pieces = append(pieces, p)
	}
	return pieces
}

// bounds returns the instants at which something begins or ends, in order.
func (l *timeline) bounds() []time.Time {
	bounds := []time.Time{l.from, l.to}
	if !l.resumed.IsZero() {
		bounds = append(bounds, l.frozen, l.resumed)
	}
	for _, s := range l.spans {
		bounds = append(bounds, s.from, s.to)
	}
	slices.SortFunc(bounds, time.Time.Compare)
	return slices.CompactFunc(bounds, time.Time.Equal)
}

// owner returns the step to which the time from t to the next bound belongs.
func (l *timeline) owner(t time.Time) (name, node string) {
	var best *placed
	for i := range l.spans {
		s := &l.spans[i]
		if t.Before(s.from) || !t.Before(s.to) {
			continue
		}
		if best == nil || best.behind && !s.behind || best.behind == s.behind && !s.from.Before(best.from) {
			best = s
		}
	}
	switch {
	case best == nil:
		return phaseWait, l.source
	case best.behind && !l.resumed.IsZero() && t.Before(l.frozen):
		return phaseWait, l.source // nothing could be received yet
	case best.name == string(StepFreeze) && !l.resumed.IsZero() && t.Before(l.frozen):
		return phaseStop, best.node
	}
	return best.name, best.node
}
