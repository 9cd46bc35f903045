package decide

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// DefaultBitsPerSecond is assumed of a link that nobody has measured.
	DefaultBitsPerSecond = 1e9
	// fixedSeconds is what a move takes whatever its size.
	fixedSeconds = 0.5
	// unknownBytes is the size of a container whose node does not tell.
	unknownBytes = 64 << 20
)

// choice is the best target so far.
type choice struct {
	node    int  // -1: none
	failed  bool // the container did not move there before
	penalty int  // for groups: how many wishes are not met
	seconds float64
}

// before reports whether a choice is better than another.
func (c choice) before(other choice) bool {
	switch {
	case other.node < 0:
		return true
	case c.failed != other.failed:
		return other.failed
	case c.penalty != other.penalty:
		return c.penalty < other.penalty
	}
	return c.seconds < other.seconds
}

// refusals counts why nodes are not possible.
type refusals struct{ away, closed, label, room, refused int }

func (f refusals) String() string {
	var parts []string
	for _, one := range []struct {
		count int
		what  string
	}{
		{f.away, "not connected"}, {f.closed, "cordoned or drained"}, {f.label, "not allowed by its labels"},
		{f.room, "without room"}, {f.refused, "refused it"},
	} {
		if one.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", one.count, one.what))
		}
	}
	if len(parts) == 0 {
		return "there is no other node"
	}
	return "of the other nodes " + strings.Join(parts, ", ")
}

// place finds a node for a container, or says why there is none.
func (r *round) place(container int, cause Cause, priority int, reason string) {
	c := &r.Containers[container]
	best, why := r.best(c)
	intent := Intent{
		Container: container, Target: best.node, Cause: cause, Priority: priority, Seconds: best.seconds,
		Recommended: cause == Allowed && !r.Enforce,
	}
	if best.node < 0 {
		intent.Reason = fmt.Sprintf("%s; no node can take it: %s", reason, why)
	} else {
		intent.Reason = fmt.Sprintf("%s; %s gets it soonest (%.1f s)", reason, r.Nodes[best.node].Name,
			best.seconds)
	}
	r.add(intent)
}

// best finds the node where a container arrives first.
func (r *round) best(c *Container) (choice, refusals) {
	best, why := choice{node: -1}, refusals{}
	for node := range r.Nodes {
		if node == c.Node {
			continue
		}
		n := &r.Nodes[node]
		switch {
		case !n.Connected:
			why.away++
			continue
		case n.State != Active:
			why.closed++
			continue
		case !c.Nodes.Matches(n.Labels):
			why.label++
			continue
		case n.FreeBytes < c.size():
			why.room++
			continue
		case slices.Contains(c.Refused, node):
			why.refused++
			continue
		}
		one := choice{node, slices.Contains(c.Failed, node), r.groups.penalty(c, node), r.seconds(c, node)}
		if one.before(best) {
			best = one
		}
	}
	return best, why
}

// refuses says why a node cannot get a container; empty: it can.
func (r *round) refuses(c *Container, node int) string {
	n := &r.Nodes[node]
	switch {
	case !n.Connected:
		return n.Name + " is not connected"
	case n.State == Cordoned:
		return n.Name + " is cordoned; godwit node restore " + n.Name + " opens it"
	case n.State == Draining:
		return n.Name + " is being drained; godwit node restore " + n.Name + " opens it"
	case !c.Nodes.Matches(n.Labels):
		return fmt.Sprintf("its label allows only nodes with %s", c.Nodes)
	case n.FreeBytes < c.size():
		return fmt.Sprintf("it takes %d MiB, and %s has room for %d", c.size()>>20, n.Name, n.FreeBytes>>20)
	}
	return ""
}

// seconds predicts when a container that leaves now is at a node: what is on its way there goes first.
func (r *round) seconds(c *Container, node int) float64 {
	rate := r.Nodes[c.Node].BitsPerSecond[node]
	if rate <= 0 {
		rate = DefaultBitsPerSecond
	}
	return fixedSeconds + float64(c.size()+r.Nodes[node].ArrivingBytes)*8/rate
}

func (c *Container) size() int64 {
	if c.Bytes <= 0 {
		return unknownBytes
	}
	return c.Bytes
}

// groups count the containers of each group at each node.
type groups struct{ together, apart map[string]map[int]int }

func groupsOf(w World) groups {
	g := groups{map[string]map[int]int{}, map[string]map[int]int{}}
	for i := range w.Containers {
		if c := &w.Containers[i]; c.Affinity != "" || c.Spread != "" {
			g.count(c, c.Node, 1)
		}
	}
	return g
}

func (g groups) count(c *Container, node, by int) {
	for _, one := range []struct {
		group string
		in    map[string]map[int]int
	}{{c.Affinity, g.together}, {c.Spread, g.apart}} {
		if one.group == "" {
			continue
		}
		if one.in[one.group] == nil {
			one.in[one.group] = map[int]int{}
		}
		one.in[one.group][node] += by
	}
}

// move counts a container at its target.
func (g groups) move(c Container, target int) {
	g.count(&c, c.Node, -1)
	g.count(&c, target, 1)
}

// most is the node with most of an affinity group, the first by name among equals; -1: the group is empty.
func (g groups) most(group string) int {
	best := -1
	for node, count := range g.together[group] {
		most := 0
		if best >= 0 {
			most = g.together[group][best]
		}
		if count > most || count == most && count > 0 && node < best {
			best = node
		}
	}
	return best
}

// penalty counts the wishes of a container's groups that a node does not meet.
func (g groups) penalty(c *Container, node int) (unmet int) {
	if c.Spread != "" && g.apart[c.Spread][node] > 0 {
		unmet++
	}
	if c.Affinity != "" && g.together[c.Affinity][node] == 0 {
		unmet++
	}
	return unmet
}
