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
func (v *view) indexes(names []string) (all []int) {
	for _, name := range names {
		if i, found := v.index[name]; found {
			all = append(all, i)
		}
	}
	return all
}

// world describes the cluster for a decision. The description is valid until the next one is made.
func (c *cluster) world() view {
	names := slices.Sorted(maps.Keys(c.state.Nodes))
	v := view{decide.World{Enforce: c.enforce}, make(map[string]int, len(names))}
	v.Nodes = make([]decide.Node, 0, len(names))
	v.Containers = c.scratch[:0] // fresh memory for 100,000 containers takes longer than to describe them
	for i, name := range names {
		v.index[name] = i
	}
	busy := c.queue.Busy()
	for id := range c.places.several {
		busy[id] = true // which of them is the container is for the nodes to find out
	}
	for i, name := range names {
		v.Nodes = append(v.Nodes, c.node(v, name))
		if live := c.live[name]; live != nil {
			for _, one := range live.runs() {
				v.Containers = append(v.Containers, c.describe(&v, one, i, busy[one.Id]))
			}
		}
	}
	c.scratch = v.Containers
	for _, job := range c.queue.All() {
		if to, found := v.index[job.To]; found {
			bytes := c.state.Intents[job.ID].Bytes
			v.Nodes[to].ArrivingBytes += bytes
			v.Nodes[to].FreeBytes -= bytes
		}
	}
	return v
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

func (c *cluster) describe(v *view, one *api.NodeContainer, node int, busy bool) decide.Container {
	kept := c.state.Containers[one.Id]
	d := decide.Container{
		ID: one.Id, Name: one.Name, Node: node, Busy: busy || one.Moving, Bytes: one.MemoryBytes, Home: -1,
		Spread: one.Labels[labelSpread], Affinity: one.Labels[labelAffinity],
		Held: c.heldBy(kept.Held, v.Nodes[node].Name),
	}
	if last, found := c.failures[one.Id]; found {
		d.NotBefore = last.notBefore()
		refused, failed := c.failures.tried(one.Id, c.traits)
		d.Refused, d.Failed = v.indexes(refused), v.indexes(failed)
	}
	d.Nodes = c.selectors.read(one.Labels[labelNodes])
	if kept.Home != "" {
		if i, found := v.index[kept.Home]; found {
			d.Home = i
		}
	}
	return d
}

// keptSelectors bounds the selectors that are remembered: many containers have the same.
const keptSelectors = 10_000

// selectors are those that were read, by the text of the label.
type selectors map[string]decide.Selector

// read reads a selector of a label. One that cannot be read allows all nodes; ClusterContainers shows the
// label.
func (s selectors) read(text string) decide.Selector {
	if text == "" {
		return nil
	}
	read, found := s[text]
	if !found {
		if len(s) >= keptSelectors {
			clear(s)
		}
		read, _ = decide.ParseSelector(text)
		s[text] = read
	}
	return read
}
