package controller

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/api"
)

// TestPlaces: what is counted and sorted while nodes come, change and come again is what they say.
func TestPlaces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	states := []string{running, running, "exited", "frozen"}
	some := func() (all []*api.NodeContainer) {
		for range random.IntN(4) {
			one := container(fmt.Sprintf("%x", random.IntN(8)))
			one.State = states[random.IntN(len(states))]
			all = append(all, one)
		}
		return all
	}
	counted := newPlaces()
	all := []*liveNode{{}, {}, {}}
	for range 2000 {
		live := all[random.IntN(len(all))]
		switch random.IntN(4) {
		case 0:
			var told inventory
			told.take(&api.NodeState{Containers: some()})
			live.count(nil)
			live.inventory = told
			live.count(counted)
		case 1:
			live.forget(container(fmt.Sprintf("%x", random.IntN(8))).Id)
		default:
			if live.containers == nil {
				continue // it has not connected
			}
			delta := &api.Delta{Containers: some()}
			for _, one := range some() {
				delta.Gone = append(delta.Gone, one.Id)
			}
			live.change(delta)
		}
		nodes, several := map[string]int{}, map[string]bool{}
		for _, one := range all {
			var ids, runs []string
			for id, container := range one.containers {
				if container.State == running {
					ids = append(ids, id)
					nodes[id]++
				}
			}
			for _, container := range one.runs() {
				runs = append(runs, container.Id)
			}
			if slices.Sort(ids); !slices.Equal(ids, runs) {
				t.Fatalf("%v run, and %v are found", ids, runs)
			}
		}
		for id, count := range nodes {
			if count > 1 {
				several[id] = true
			}
		}
		if !maps.Equal(nodes, counted.nodes) || !maps.Equal(several, counted.several) {
			t.Fatalf("counted %v and %v, want %v and %v", counted.nodes, counted.several, nodes, several)
		}
	}
}

// TestSelectors: as many selectors as containers make up are not all remembered, and none is mistaken.
func TestSelectors(t *testing.T) {
	read := selectors{}
	for i := range 2*keptSelectors + 7 {
		text := fmt.Sprint("zone=", i)
		for range 2 {
			if got := read.read(text).String(); got != text {
				t.Fatalf("%q is read as %q", text, got)
			}
		}
	}
	if len(read) != 7 {
		t.Errorf("%d are remembered", len(read))
	}
	for range 2 {
		if read.read("") != nil || read.read("no selector") != nil {
			t.Error("a selector that cannot be read allows few nodes")
		}
	}
}
