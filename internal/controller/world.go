package controller

import (
	"maps"
	"slices"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/decide"
	"github.com/godwit/godwit/internal/controller/store"
)

// Labels of containers that the controller obeys.
const (
	labelNodes    = "godwit.nodes"    // where the container may be: a selector
	labelSpread   = "godwit.spread"   // group whose containers should be on different nodes
	labelAffinity = "godwit.affinity" // group whose containers should be on one node
)

// running is the state of a container that can move, as an agent says it.
const running = "running"

// view is the world with the names of its nodes.
type view struct {
	decide.World
	index map[string]int // of nodes, by name
}

// indexes finds nodes that are known.
func (v view) indexes(names []string) (all []int) {
	for _, name := range names {
		if i, found := v.index[name]; found {
			all = append(all, i)
		}
	}
	return all
}

// world describes the cluster for a decision.
func (c *cluster) world() view {
	v := view{decide.World{Enforce: c.enforce}, map[string]int{}}
	names := slices.Sorted(maps.Keys(c.state.Nodes))
	for i, name := range names {
		v.index[name] = i
	}
	busy := c.queue.Busy()
	for id := range c.doubles() {
		busy[id] = true // which of them is the container is for the nodes to find out
	}
	for i, name := range names {
		v.Nodes = append(v.Nodes, c.node(v, name))
		if live := c.live[name]; live != nil {
			for _, id := range slices.Sorted(maps.Keys(live.containers)) {
				if one := live.containers[id]; one.State == running {
					v.Containers = append(v.Containers, c.describe(v, one, i, busy[id]))
				}
			}
		}
	}
	for _, job := range c.queue.All() {
		if to, found := v.index[job.To]; found {
			bytes := c.state.Intents[job.ID].Bytes
			v.Nodes[to].ArrivingBytes += bytes
			v.Nodes[to].FreeBytes -= bytes
		}
	}
	return v
}

// doubles returns the containers that several nodes say they run.
func (c *cluster) doubles() map[string]bool {
	seen, doubles := map[string]bool{}, map[string]bool{}
	for _, live := range c.live {
		for id, one := range live.containers {
			if one.State == running {
				doubles[id] = seen[id]
				seen[id] = true
			}
		}
	}
	maps.DeleteFunc(doubles, func(_ string, double bool) bool { return !double })
	return doubles
}

func (c *cluster) node(v view, name string) decide.Node {
	wanted := c.state.Nodes[name]
	n := decide.Node{Name: name, Labels: wanted.Labels}
	switch wanted.State {
	case store.Cordoned:
		n.State = decide.Cordoned
	case store.Draining:
		n.State = decide.Draining
	}
	if d := wanted.Drain; d != nil {
		n.Drained = decide.Drained{By: d.By, Since: d.Since, Deadline: d.Deadline}
	}
	live := c.live[name]
	if live == nil {
		return n
	}
	n.Connected, n.FreeBytes = live.session != nil, live.free
	if len(live.rates) > 0 {
		n.BitsPerSecond = map[int]float64{}
		for other, rate := range live.rates {
			if i, found := v.index[other]; found {
				n.BitsPerSecond[i] = rate
			}
		}
	}
	return n
}

func (c *cluster) describe(v view, one *api.NodeContainer, node int, busy bool) decide.Container {
	d := decide.Container{
		ID: one.Id, Name: one.Name, Node: node, Busy: busy || one.Moving, Bytes: one.MemoryBytes, Home: -1,
		Spread: one.Labels[labelSpread], Affinity: one.Labels[labelAffinity],
		NotBefore: c.failures[one.Id].notBefore(), Held: c.heldBy(one.Id, v.Nodes[node].Name),
	}
	refused, failed := c.tried(one.Id)
	d.Refused, d.Failed = v.indexes(refused), v.indexes(failed)
	// A selector that cannot be read allows all nodes; ClusterContainers shows the label.
	d.Nodes, _ = decide.ParseSelector(one.Labels[labelNodes])
	if home := c.state.Containers[one.Id].Home; home != "" {
		if i, found := v.index[home]; found {
			d.Home = i
		}
	}
	return d
}
