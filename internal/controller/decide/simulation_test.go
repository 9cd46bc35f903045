package decide

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// large makes a cluster: one in ten containers has a group or a selector.
func large(nodes, containers int) World {
	random := rand.New(rand.NewPCG(1, 2))
	w := World{Enforce: true}
	for i := range nodes {
		w.Nodes = append(w.Nodes, Node{
			Name: fmt.Sprintf("n%05d", i), Connected: true, FreeBytes: 8 << 30,
			Labels: map[string]string{"zone": fmt.Sprint(i % 50), "disk": []string{"ssd", "hdd"}[i%2]},
		})
	}
	zones := make([]Selector, 50)
	for i := range zones {
		zones[i] = Selector{{Key: "zone", Values: []string{fmt.Sprint(i)}}}
	}
	for i := range containers {
		c := Container{
			ID: fmt.Sprintf("c%06d", i), Name: fmt.Sprint("c", i), Node: random.IntN(nodes),
			Bytes: int64(16+random.IntN(500)) << 20, Home: -1,
		}
		switch i % 30 {
		case 0:
			c.Nodes = zones[c.Node%50] // it is allowed where it is
		case 1:
			c.Spread = fmt.Sprint("s", i/300)
		case 2:
			c.Affinity = fmt.Sprint("a", i) // alone in its group
		}
		w.Containers = append(w.Containers, c)
	}
	return w
}

// carryOut does what a decision says, at once.
func carryOut(w World, intents []Intent) {
	for _, one := range intents {
		if !one.Possible() {
			continue
		}
		c := &w.Containers[one.Container]
		w.Nodes[c.Node].FreeBytes += c.Bytes
		w.Nodes[one.Target].FreeBytes -= c.Bytes
		if w.Nodes[c.Node].State == Draining {
			c.Home = c.Node
		}
		if one.Cause == BringBack {
			c.Home = -1
		}
		c.Node = one.Target
	}
}

// TestLifeOfACluster drains nodes of a cluster, loses some, restores them, and looks at what must hold:
// drained nodes become empty but for containers whose moves were cancelled, no container goes where it may
// not be, where it was refused or where there is no room, what was drained returns, and the cluster comes to
// rest.
func TestLifeOfACluster(t *testing.T) {
	w := large(200, 2000)
	for i := range w.Containers {
		c := &w.Containers[i]
		switch {
		case i%7 == 3:
			c.Held = "anna"
		case i%7 == 4 && len(c.Nodes) == 0: // most nodes refuse it
			for node := range w.Nodes {
				if node != c.Node && node%20 != i%20 {
					c.Refused = append(c.Refused, node)
				}
			}
		case i%7 == 5:
			c.Failed = []int{i % 200, (i + 1) % 200}
		}
	}
	rest := func(what string) {
		t.Helper()
		for round := 0; ; round++ {
			intents := Decide(w, noon)
			for _, one := range intents {
				c := w.Containers[one.Container]
				if !one.Possible() {
					continue
				}
				to := w.Nodes[one.Target]
				if !to.Connected || to.State != Active || !c.Nodes.Matches(to.Labels) ||
					one.Target == c.Node || c.Held != "" || slices.Contains(c.Refused, one.Target) ||
					!w.Nodes[c.Node].Connected || one.Reason == "" {
					t.Fatalf("%s: %s from %s to %+v: %s", what, c.ID, w.Nodes[c.Node].Name, to, one.Reason)
				}
			}
			if !slices.ContainsFunc(intents, Intent.Possible) {
				return
			}
			if round > 20 {
				t.Fatalf("%s: the cluster does not come to rest: %v", what, lines(w, intents))
			}
			carryOut(w, intents)
			for _, node := range w.Nodes {
				if node.FreeBytes < 0 {
					t.Fatalf("%s: no room at %s", what, node.Name)
				}
			}
		}
	}
	rest("at first")
	before := make([]int, len(w.Containers))
	for i, c := range w.Containers {
		before[i] = c.Node
	}
	drained := []int{3, 50, 51, 120}
	for _, node := range drained {
		drain(w, node, noon.Add(time.Minute))
	}
	away(w, 60)
	rest("drained")
	for i, c := range w.Containers {
		if slices.Contains(drained, c.Node) != (c.Held != "" && slices.Contains(drained, before[i])) {
			t.Errorf("%s is still at the drained %s", c.ID, w.Nodes[c.Node].Name)
		}
	}
	w.Nodes[60].Connected = true
	for _, node := range drained {
		w.Nodes[node].State = Active
	}
	rest("restored")
	for i, c := range w.Containers {
		if slices.Contains(drained, before[i]) && c.Node != before[i] && c.Spread == "" {
			t.Errorf("%s did not return to %s", c.ID, w.Nodes[before[i]].Name)
		}
	}
}

// BenchmarkChange measures a decision after one change in a cluster of 10,000 nodes and 100,000
// containers; p99ms is asked to be under 100.
func BenchmarkChange(b *testing.B) {
	const nodes = 10_000
	w := large(nodes, 100_000)
	for range 20 { // to rest
		carryOut(w, Decide(w, noon))
	}
	random := rand.New(rand.NewPCG(3, 4))
	changes := map[string]func(node int) (undo func()){
		"drain": func(node int) func() {
			drain(w, node, time.Time{})
			return func() { w.Nodes[node].State = Active }
		},
		"node down": func(node int) func() {
			w.Nodes[node].Connected = false
			return func() { w.Nodes[node].Connected = true }
		},
		"label": func(node int) func() {
			was := w.Nodes[node].Labels
			w.Nodes[node].Labels = map[string]string{"zone": "none"}
			return func() { w.Nodes[node].Labels = was }
		},
	}
	for what, change := range changes {
		b.Run(what, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				undo := change(random.IntN(nodes))
				began := time.Now()
				Decide(w, noon)
				took = append(took, time.Since(began))
				undo()
			}
			slices.Sort(took)
			b.ReportMetric(took[(len(took)-1)*99/100].Seconds()*1000, "p99ms")
			b.ReportMetric(took[len(took)/2].Seconds()*1000, "p50ms")
		})
	}
}
