package placement

import (
	"cmp"
	"slices"
	"time"
)

// nearerWith is the factor on the round trip of a node that has a copy.
const nearerWith = 0.75

func (p Policy) decideNearest(s Situation) Decision {
	order := p.byDistance(s)
	wanted := order[:min(p.Nearest, len(order), p.fit(s.MemoryBytes))]
	var d Decision
	for _, n := range wanted {
		d.Targets = append(d.Targets, Target{Node: n.Name, Need: n.Need})
	}
	d.Drop = p.over(s, order, wanted)
	d.Live = s.Live
	if !slices.ContainsFunc(wanted, func(n Node) bool { return n.Name == s.Live }) {
		d.Live = ""
	}
	if s.Busy {
		return d
	}
	if next := p.next(s, wanted); next != "" {
		d.Round, d.Live = next == s.Live, next
	}
	d.Rate = p.limited(s.node(d.Live).Bandwidth / 2)
	return d
}

// byDistance returns the nodes that can be reached, the nearest first.
func (p Policy) byDistance(s Situation) []Node {
	order := slices.DeleteFunc(slices.Clone(s.Nodes),
		func(n Node) bool { return !n.Reachable || n.RTT <= 0 || n.Name == s.Node })
	distance := func(n Node) time.Duration {
		if p.At(n.Name).whole() {
			return time.Duration(nearerWith * float64(n.RTT))
		}
		return n.RTT
	}
	slices.SortFunc(order, func(a, b Node) int {
		return cmp.Or(cmp.Compare(distance(a), distance(b)), cmp.Compare(a.Name, b.Name))
	})
	return order
}

// fit returns how many copies the budget allows.
func (p Policy) fit(memory int64) int {
	if p.BudgetBytes == 0 || memory <= 0 {
		return MaxNearest
	}
	return int(min(p.BudgetBytes/memory, MaxNearest))
}

// over returns the copies to remove: without a budget all unwanted copies, otherwise as many as exceed it,
// the least useful first.
func (p Policy) over(s Situation, order, wanted []Node) (drop []string) {
	rank := func(c Copy) int {
		return slices.IndexFunc(order, func(n Node) bool { return n.Name == c.Node })
	}
	spare := p.unwanted(func(node string) bool {
		return slices.ContainsFunc(wanted, func(n Node) bool { return n.Name == node })
	})
	// the most useful first; unreachable nodes last
	slices.SortStableFunc(spare, func(a, b Copy) int {
		x, y := rank(a), rank(b)
		if (x < 0) != (y < 0) {
			return cmp.Compare(y, x)
		}
		return cmp.Or(cmp.Compare(x, y), b.Fresh.Compare(a.Fresh))
	})
	total := int64(0)
	for _, n := range wanted {
		total += s.MemoryBytes
		if c := p.At(n.Name); c != nil {
			total += max(0, c.Bytes-s.MemoryBytes)
		}
	}
	for _, c := range spare {
		if total += c.Bytes; p.BudgetBytes == 0 || total > p.BudgetBytes {
			drop = append(drop, c.Node)
			total -= c.Bytes
		}
	}
	return drop
}

// next returns the node whose copy should be made, or brought up to date, now; empty: none.
func (p Policy) next(s Situation, wanted []Node) string {
	var oldest *Copy
	for _, n := range wanted {
		c := p.At(n.Name)
		if !p.mayTry(n.Name, s.Now) {
			continue
		}
		if !c.whole() {
			return n.Name
		}
		if oldest == nil || c.Fresh.Before(oldest.Fresh) {
			oldest = c
		}
	}
	if oldest == nil {
		return ""
	}
	for i := range p.Copies { // no copy is updated right after another one
		if c := &p.Copies[i]; c.whole() && !c.rested(s.Now, pauseNearest, rest) {
			return ""
		}
	}
	return oldest.Node
}
