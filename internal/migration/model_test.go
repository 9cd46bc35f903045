package migration

import (
	"flag"
	"slices"
	"strings"
	"testing"
)

// The model checker visits every state that two machines, a link and a container can reach with a bounded
// number of faults (crash of either agent between any two actions, link down, cancel, failing steps, and
// events from outside: see trust_world_test.go), breadth first. In each state it checks that two copies
// never run (I1), and that without further faults an end is reached in which exactly one copy runs and
// nothing is left over (I2).

// explored is the checker's result.
type explored struct {
	states    int
	violation string
	trace     []string
}

type visit struct {
	parent, fair int
	by           move
	done         bool
}

// explorer goes through all states, breadth first.
type explorer struct {
	ids    map[string]int
	visits []visit
	queue  []*system
	key    []byte
}

// explore stops at the first violation; breadth first, its path is one of the shortest.
func explore(mode Mode, faults int, mutant mutation) explored {
	return exploreFrom(newSystem(mode, faults, mutant))
}

func exploreFrom(s *system) explored {
	e := &explorer{ids: map[string]int{}}
	e.add(s, visit{parent: -1, fair: -1})
	for id := 0; id < len(e.visits); id++ {
		s := e.queue[id]
		e.queue[id] = nil
		bad := s.invariant()
		if bad == "" {
			bad = e.expand(id, s)
		}
		if bad != "" {
			return explored{len(e.visits), bad, trace(e.visits, id)}
		}
	}
	return checkEnds(e.visits)
}

// add remembers a state, if it is new, and returns its number.
func (e *explorer) add(s *system, v visit) int {
	e.key = s.key(e.key[:0])
	id, known := e.ids[string(e.key)]
	if !known {
		id = len(e.visits)
		e.ids[string(e.key)] = id
		e.visits = append(e.visits, v)
		e.queue = append(e.queue, s)
	}
	return id
}

// expand makes every move from a state. A state without moves must be a good end.
func (e *explorer) expand(id int, s *system) string {
	quiet, cutOff := true, !s.link
	for _, v := range s.moves() {
		nid, actions := e.try(id, s, v)
		for k := 0; v.cost() < s.faults && k < actions; k++ {
			crash := v
			crash.crash = k
			e.try(id, s, crash)
		}
		if v.fault || nid == id {
			continue
		}
		if quiet {
			e.visits[id].fair = nid
			quiet = false
		}
		if v.kind != "link up" {
			cutOff = false
		}
	}
	e.visits[id].done = quiet
	switch {
	case quiet:
		return s.ended()
	case cutOff:
		return s.stuck()
	}
	return ""
}

func (e *explorer) try(id int, s *system, v move) (nid, actions int) {
	next := s.clone()
	actions = next.apply(v)
	return e.add(next, visit{parent: id, fair: -1, by: v}), actions
}

// checkEnds follows the fair schedule from every state, which must end.
func checkEnds(visits []visit) explored {
	for id := range visits {
		var path []int
		seen := map[int]bool{}
		for at := id; !visits[at].done; at = visits[at].fair {
			if seen[at] {
				return explored{len(visits), "it goes round and never ends", trace(visits, at)}
			}
			seen[at] = true
			path = append(path, at)
		}
		for _, at := range path {
			visits[at].done = true
		}
	}
	return explored{states: len(visits)}
}

func trace(visits []visit, id int) []string {
	var out []string
	for ; id > 0; id = visits[id].parent {
		out = append(out, visits[id].by.String())
	}
	slices.Reverse(out)
	return out
}

var faults = flag.Int("faults", 2, "faults that the model checker allows; 3 takes ten times as long")

func TestEveryInterleaving(t *testing.T) {
	everyMode(t, *faults, "nothing from outside")
}

// TestEveryInterleavingFromOutside adds events from outside. They multiply the states of each fault, so
// with -short the test allows one fault fewer. An operator has nothing to decide before there was another
// fault.
func TestEveryInterleavingFromOutside(t *testing.T) {
	allowed := *faults
	if testing.Short() {
		allowed--
	}
	t.Run("anything", func(t *testing.T) { everyMode(t, allowed) })
	if !testing.Short() {
		return
	}
	t.Run("operators", func(t *testing.T) {
		s := newSystem(Cold, *faults, nil)
		s.only = []string{"an operator wants it at the source", "an operator wants it at the target"}
		holds(t, s)
	})
}

func everyMode(t *testing.T, faults int, only ...string) {
	t.Helper()
	var before []Step
	for _, mode := range Modes() {
		if !mode.Available() || slices.Equal(Steps(mode), before) {
			continue
		}
		before = Steps(mode)
		t.Run(string(mode), func(t *testing.T) {
			s := newSystem(mode, faults, nil)
			s.only = only
			holds(t, s)
		})
	}
}

func holds(t *testing.T, s *system) {
	t.Helper()
	found := exploreFrom(s)
	if found.violation != "" {
		t.Fatalf("%s:\n  %s", found.violation, strings.Join(found.trace, "\n  "))
	}
	t.Logf("%d states", found.states)
}
