package decide

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Priorities; a larger number goes first.
const (
	priorityUser      = 100
	priorityDrain     = 50
	priorityHurry     = 20 // more, when half of the time of a drain is over, and again when a fifth is left
	priorityAllowed   = 30
	priorityBringBack = 20
	priorityGroup     = 10
)

// round is one decision.
type round struct {
	World
	now     time.Time
	on      [][]int // containers by node
	groups  groups
	planned []bool // by container: it has an intent by now
	intents []Intent
}

// Decide returns the intents that the world calls for and that do not exist yet, the most urgent first.
func Decide(w World, now time.Time) []Intent {
	r := &round{World: w, now: now, planned: make([]bool, len(w.Containers))}
	r.Nodes = slices.Clone(w.Nodes) // what the decision adds to a node is for this round only
	r.on = byNode(w)
	r.groups = groupsOf(w)
	r.requests()
	r.drains()
	r.labels()
	slices.SortStableFunc(r.intents, func(a, b Intent) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority),
			cmp.Compare(r.Containers[a.Container].ID, r.Containers[b.Container].ID))
	})
	return r.intents
}

func byNode(w World) [][]int {
	counts := make([]int, len(w.Nodes))
	for i := range w.Containers {
		counts[w.Containers[i].Node]++
	}
	all, on := make([]int, len(w.Containers)), make([][]int, len(w.Nodes))
	for node, count := range counts {
		on[node], all = all[:0:count], all[count:]
	}
	for i := range w.Containers {
		node := w.Containers[i].Node
		on[node] = append(on[node], i)
	}
	return on
}

// free reports whether the round may decide about a container.
func (r *round) free(container int) bool {
	c := &r.Containers[container]
	return !c.Busy && !r.planned[container] && !r.now.Before(c.NotBefore) && c.Held == ""
}

// add notes an intent, and what it does to the target and to the groups.
func (r *round) add(i Intent) {
	r.planned[i.Container] = true
	r.intents = append(r.intents, i)
	if !i.Possible() {
		return
	}
	c := &r.Containers[i.Container]
	r.Nodes[i.Target].FreeBytes -= c.Bytes
	r.Nodes[i.Target].ArrivingBytes += c.Bytes
	r.groups.move(*c, i.Target)
}

// requests turns users' wishes into intents. A user names the target, so only what makes the move
// impossible stands in the way; a label that does not allow the node does, too: it is somebody's rule.
func (r *round) requests() {
	for _, wish := range r.Requests {
		c, target := &r.Containers[wish.Container], &r.Nodes[wish.Target]
		intent := Intent{
			Container: wish.Container, Target: wish.Target, Cause: User, Priority: priorityUser,
			Seconds: r.seconds(c, wish.Target), Reason: fmt.Sprintf("%s asked for it", wish.By),
		}
		why := ""
		switch {
		case c.Busy || r.planned[wish.Container]:
			why = "it is being moved already; godwit migration ls --all shows where to"
		case c.Node == wish.Target:
			why = "it is there already"
		case !r.Nodes[c.Node].Connected:
			why = fmt.Sprintf("its node %s is not connected", r.Nodes[c.Node].Name)
		default:
			why = r.refuses(c, wish.Target)
		}
		if why != "" {
			r.intents = append(r.intents, Intent{Container: wish.Container, Target: -1, Cause: User,
				Priority: priorityUser, Reason: fmt.Sprintf("%s cannot go to %s: %s", c.Name, target.Name,
					why)})
			continue
		}
		r.add(intent)
	}
}

// drains empties the nodes that are drained.
func (r *round) drains() {
	for node := range r.Nodes {
		n := &r.Nodes[node]
		if n.State != Draining || !n.Connected {
			continue
		}
		priority, when := r.urgency(n.Drained)
		// Large containers first: they are the hardest to place.
		leaving := slices.Clone(r.on[node])
		slices.SortStableFunc(leaving, func(a, b int) int {
			return cmp.Compare(r.Containers[b].Bytes, r.Containers[a].Bytes)
		})
		reason := fmt.Sprintf("%s drains %s%s", n.Drained.By, n.Name, when)
		for _, container := range leaving {
			switch c := &r.Containers[container]; {
			case r.free(container):
				r.place(container, Drain, priority, reason)
			case c.Held != "" && !c.Busy && !r.planned[container]:
				r.add(Intent{Container: container, Target: -1, Cause: Drain, Priority: priority,
					Reason: fmt.Sprintf("%s; %s cancelled its move, so it stays until a user moves it or "+
						"drains %s again", reason, c.Held, n.Name)})
			}
		}
	}
}

// urgency is the priority of a drain, and its deadline in words.
func (r *round) urgency(d Drained) (priority int, when string) {
	if d.Deadline.IsZero() {
		return priorityDrain, ""
	}
	left, whole := d.Deadline.Sub(r.now), d.Deadline.Sub(d.Since)
	priority, when = priorityDrain, ", "+left.Round(time.Second).String()+" left"
	if left <= 0 {
		when = ", the deadline passed " + (-left).Round(time.Second).String() + " ago"
	}
	if left < whole/2 {
		priority += priorityHurry
	}
	if left < whole/5 {
		priority += priorityHurry
	}
	return priority, when
}

// labels looks at what containers' labels ask for, and at those that are away from home.
func (r *round) labels() {
	for i := range r.Containers {
		c := &r.Containers[i]
		if len(c.Nodes) == 0 && c.Home < 0 && c.Affinity == "" && c.Spread == "" {
			continue // most containers
		}
		if !r.free(i) || !r.Nodes[c.Node].Connected || r.Nodes[c.Node].State == Draining {
			continue
		}
		switch {
		case len(c.Nodes) > 0 && !c.Nodes.Matches(r.Nodes[c.Node].Labels):
			r.place(i, Allowed, priorityAllowed,
				fmt.Sprintf("it may not be at %s: it is for nodes with %s", r.Nodes[c.Node].Name, c.Nodes))
		case c.Home >= 0 && c.Home != c.Node:
			r.bringBack(i)
		case c.Affinity != "":
			r.gather(i)
		case c.Spread != "":
			r.spread(i)
		}
	}
}

// bringBack returns a container to the node that it left in a drain.
func (r *round) bringBack(container int) {
	c := &r.Containers[container]
	if home := &r.Nodes[c.Home]; home.State != Active || r.refuses(c, c.Home) != "" ||
		slices.Contains(c.Refused, c.Home) {
		return // later
	}
	r.add(Intent{
		Container: container, Target: c.Home, Cause: BringBack, Priority: priorityBringBack,
		Seconds: r.seconds(c, c.Home),
		Reason:  fmt.Sprintf("%s has been restored, which it left in a drain", r.Nodes[c.Home].Name),
	})
}

// gather moves a container to the node that has most of its group.
func (r *round) gather(container int) {
	c := &r.Containers[container]
	most := r.groups.most(c.Affinity)
	if most < 0 || most == c.Node || r.refuses(c, most) != "" || slices.Contains(c.Refused, most) ||
		r.groups.together[c.Affinity][most] <= r.groups.together[c.Affinity][c.Node] {
		return
	}
	r.add(Intent{
		Container: container, Target: most, Cause: Affinity, Priority: priorityGroup,
		Recommended: !r.Enforce, Seconds: r.seconds(c, most),
		Reason: fmt.Sprintf("%d of its group %s are at %s", r.groups.together[c.Affinity][most], c.Affinity,
			r.Nodes[most].Name),
	})
}

// spread moves a container away from another of its group, if a node has none of them.
func (r *round) spread(container int) {
	c := &r.Containers[container]
	here := r.groups.apart[c.Spread][c.Node]
	if here < 2 {
		return
	}
	best, _ := r.best(c)
	if best.node < 0 || best.penalty > 0 {
		return
	}
	r.add(Intent{
		Container: container, Target: best.node, Cause: Spread, Priority: priorityGroup,
		Recommended: !r.Enforce, Seconds: best.seconds,
		Reason: fmt.Sprintf("%d of its group %s are at %s, and none at %s", here, c.Spread,
			r.Nodes[c.Node].Name, r.Nodes[best.node].Name),
	})
}
