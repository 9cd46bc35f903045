package decide

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// world makes three connected nodes with 10 GiB each, a in zone x, b and c in zone y, and containers.
func world(containers ...Container) World {
	w := World{Containers: containers}
	for i, name := range []string{"a", "b", "c"} {
		zone := "y"
		if i == 0 {
			zone = "x"
		}
		w.Nodes = append(w.Nodes, Node{Name: name, Connected: true, FreeBytes: 10 << 30,
			Labels: map[string]string{"zone": zone}})
	}
	return w
}

func container(id string, node int, change ...func(*Container)) Container {
	c := Container{ID: id, Name: "name-" + id, Node: node, Bytes: 64 << 20, Home: -1}
	for _, one := range change {
		one(&c)
	}
	return c
}

func drain(w World, node int, deadline time.Time) World {
	w.Nodes[node].State = Draining
	w.Nodes[node].Drained = Drained{By: "anna", Since: noon.Add(-time.Hour), Deadline: deadline}
	return w
}

// lines are intents in a form that a test can name: CONTAINER CAUSE TARGET PRIORITY.
func lines(w World, intents []Intent) []string {
	var all []string
	for _, one := range intents {
		target := "-"
		if one.Possible() {
			target = w.Nodes[one.Target].Name
		}
		line := fmt.Sprintf("%s %s %s %d", w.Containers[one.Container].ID, one.Cause, target, one.Priority)
		if one.Recommended {
			line += " recommended"
		}
		all = append(all, line)
	}
	return all
}

func selector(t *testing.T, text string) Selector {
	t.Helper()
	s, err := ParseSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDecide(t *testing.T) {
	x, y := selector(t, "zone=x"), selector(t, "zone=y")
	for what, test := range map[string]struct {
		world World
		want  []string
		says  string // a part of the first reason
	}{
		"nothing to do": {world(container("1", 0)), nil, ""},
		"a user": {asked(world(container("1", 0)), 0, 2), []string{"1 user c 100"},
			"anna asked for it"},
		"a user, for where it is": {asked(world(container("1", 0)), 0, 0), []string{"1 user - 100"},
			"it is there already"},
		"a user, for what is being moved": {asked(world(container("1", 0, busy)), 0, 1),
			[]string{"1 user - 100"}, "it is being moved already"},
		"a user, for what the label forbids": {
			asked(world(container("1", 0, func(c *Container) { c.Nodes = x })), 0, 1),
			[]string{"1 user - 100"}, "its label allows only nodes with zone=x"},
		"a user, without room": {
			asked(world(container("1", 0, func(c *Container) { c.Bytes = 11 << 30 })), 0, 1),
			[]string{"1 user - 100"}, "b has room for 10240"},
		"a user, to a drained node": {
			asked(drain(world(container("1", 0)), 1, time.Time{}), 0, 1),
			[]string{"1 user - 100"}, "godwit node restore b"},
		"two users": {
			World{Nodes: world().Nodes, Containers: []Container{container("1", 0)},
				Requests: []Request{{0, 1, "anna"}, {0, 2, "otto"}}},
			[]string{"1 user b 100", "1 user - 100"}, "anna"},
		"a drain spreads": {
			drain(world(container("1", 0), container("2", 0), container("3", 0), container("4", 1)), 0,
				time.Time{}),
			[]string{"1 drain b 50", "2 drain c 50", "3 drain b 50"}, "anna drains a; b gets it soonest"},
		"a drain with time": {drain(world(container("1", 0)), 0, noon.Add(2*time.Hour)),
			[]string{"1 drain b 50"}, "2h0m0s left"},
		"a drain in a hurry": {drain(world(container("1", 0)), 0, noon.Add(50*time.Minute)),
			[]string{"1 drain b 70"}, "50m0s left"},
		"a drain that is late": {drain(world(container("1", 0)), 0, noon.Add(-time.Minute)),
			[]string{"1 drain b 90"}, "the deadline passed 1m0s ago"},
		"a drain knows links": {
			slow(drain(world(container("1", 0)), 0, time.Time{}), 0, 1, 1e6),
			[]string{"1 drain c 50"}, "c gets it soonest"},
		"a drain knows what arrives": {
			arriving(drain(world(container("1", 0)), 0, time.Time{}), 1),
			[]string{"1 drain c 50"}, ""},
		"a drain obeys labels": {
			drain(world(container("1", 1, func(c *Container) { c.Nodes = y })), 1, time.Time{}),
			[]string{"1 drain c 50"}, ""},
		"a drain without a way": {
			away(drain(world(container("1", 1, func(c *Container) { c.Nodes = y })), 1, time.Time{}), 2),
			[]string{"1 drain - 50"},
			"no node can take it: of the other nodes 1 not connected, 1 not allowed by its labels"},
		"a drain leaves what failed alone for a while": {
			drain(world(container("1", 0, func(c *Container) { c.NotBefore = noon.Add(time.Second) })), 0,
				time.Time{}), nil, ""},
		"a drain of a node that is away": {away(drain(world(container("1", 0)), 0, time.Time{}), 0), nil, ""},
		"the largest first": {
			drain(full(world(container("1", 0), container("2", 0, func(c *Container) { c.Bytes = 9 << 30 })),
				2),
				0, time.Time{}),
			[]string{"1 drain b 50", "2 drain b 50"}, ""},
		"not allowed": {enforced(world(container("1", 1, func(c *Container) { c.Nodes = x }))),
			[]string{"1 allowed a 30"}, "it may not be at b: it is for nodes with zone=x"},
		"not allowed, recommended": {world(container("1", 1, func(c *Container) { c.Nodes = x })),
			[]string{"1 allowed a 30 recommended"}, ""},
		"bring back": {world(container("1", 1, func(c *Container) { c.Home = 0 })),
			[]string{"1 bring-back a 20"}, "a has been restored"},
		"not back to a drained node": {
			drain(world(container("1", 1, func(c *Container) { c.Home = 0 })), 0, time.Time{}), nil, ""},
		"not back to a node that is away": {
			away(world(container("1", 1, func(c *Container) { c.Home = 0 })), 0), nil, ""},
		"spread": {enforced(world(container("1", 0, apart), container("2", 0, apart), container("3", 1,
			apart))),
			[]string{"1 spread c 10"}, "2 of its group web are at a, and none at c"},
		"spread wide enough": {enforced(world(container("1", 0, apart), container("2", 1, apart))), nil, ""},
		"spread over too few nodes": {
			enforced(world(container("1", 0, apart), container("2", 0, apart), container("3", 1, apart),
				container("4", 2, apart))), nil, ""},
		"a drain keeps groups apart": {
			drain(world(container("1", 0, apart), container("2", 1, apart)), 0, time.Time{}),
			[]string{"1 drain c 50"}, ""},
		"affinity": {enforced(world(container("1", 0, together), container("2", 1, together),
			container("3", 1, together))), []string{"1 affinity b 10"}, "2 of its group db are at b"},
		"affinity, half and half": {enforced(world(container("1", 0, together), container("2", 1, together))),
			nil, ""},
		"a drain keeps groups together": {
			drain(world(container("1", 0, together), container("2", 0, together), container("3", 0,
				together)),
				0, time.Time{}),
			[]string{"1 drain b 50", "2 drain b 50", "3 drain b 50"}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			intents := Decide(test.world, noon)
			if got := lines(test.world, intents); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if len(intents) > 0 && !strings.Contains(intents[0].Reason, test.says) {
				t.Errorf("reason %q, want %q in it", intents[0].Reason, test.says)
			}
		})
	}
}

func busy(c *Container)     { c.Busy = true }
func apart(c *Container)    { c.Spread = "web" }
func together(c *Container) { c.Affinity = "db" }

func asked(w World, container, target int) World {
	w.Requests = append(w.Requests, Request{container, target, "anna"})
	return w
}

func away(w World, node int) World {
	w.Nodes[node].Connected = false
	return w
}

func full(w World, node int) World {
	w.Nodes[node].FreeBytes = 0
	return w
}

func arriving(w World, node int) World {
	w.Nodes[node].ArrivingBytes = 1 << 30
	return w
}

func slow(w World, from, to int, rate float64) World {
	w.Nodes[from].BitsPerSecond = map[int]float64{to: rate}
	return w
}

func enforced(w World) World {
	w.Enforce = true
	return w
}

// TestDecideIsPure: a decision changes nothing, and is the same the next time.
func TestDecideIsPure(t *testing.T) {
	w := drain(world(container("1", 0), container("2", 0)), 0, time.Time{})
	first := Decide(w, noon)
	if w.Nodes[1].FreeBytes != 10<<30 || w.Nodes[1].ArrivingBytes != 0 {
		t.Errorf("the world has changed: %+v", w.Nodes[1])
	}
	if second := Decide(w, noon); !slices.Equal(first, second) {
		t.Errorf("%v, then %v", first, second)
	}
}

func TestSelector(t *testing.T) {
	labels := map[string]string{"zone": "x", "disk": "ssd"}
	for text, want := range map[string]bool{
		"": true, "zone=x": true, "zone=y": false, "zone=y|x": true, "zone!=x": false, "zone!=y": true,
		"zone=x,disk=ssd": true, "zone=x, disk=hdd": false, "gpu=1": false, "gpu!=1": true,
	} {
		if got := selector(t, text).Matches(labels); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	for _, bad := range []string{"zone", "=x", "zone=", "zone=x,", strings.Repeat("a=b,", 16) + "a=b",
		"a=" + strings.Repeat("x", 2000)} {
		if s, err := ParseSelector(bad); err == nil {
			t.Errorf("%.40q is read as %v", bad, s)
		}
	}
}

func FuzzParseSelector(f *testing.F) {
	for _, seed := range []string{"zone=x", "zone!=x|y,disk=ssd", "!=", "a==b", ","} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelector(text)
		if err != nil {
			return
		}
		again, err := ParseSelector(s.String())
		if err != nil || again.String() != s.String() {
			t.Errorf("%q is %q, and then %v, %v", text, s, again, err)
		}
		s.Matches(map[string]string{"zone": "x"})
	})
}

// TestRefusedAndFailed: a node that refused the container is left out, and said to be; one to which it did
// not move is the last choice. A user may try both.
func TestRefusedAndFailed(t *testing.T) {
	for what, test := range map[string]struct {
		refused, failed []int
		want            string
	}{
		"neither":     {nil, nil, "1 drain b 50"},
		"refused":     {[]int{1}, nil, "1 drain c 50"},
		"failed":      {nil, []int{1}, "1 drain c 50"},
		"both failed": {nil, []int{1, 2}, "1 drain b 50"},
		"one left":    {[]int{2}, []int{1}, "1 drain b 50"},
		"all refused": {[]int{1, 2}, nil, "1 drain - 50"},
	} {
		w := drain(world(container("1", 0, func(c *Container) {
			c.Refused, c.Failed = test.refused, test.failed
		})), 0, time.Time{})
		intents := Decide(w, noon)
		if got := lines(w, intents); len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: %q, want %q", what, got, test.want)
		}
		if what == "all refused" && !strings.Contains(intents[0].Reason, "2 refused it") {
			t.Errorf("reason %q", intents[0].Reason)
		}
		w.Requests = []Request{{Container: 0, Target: 1, By: "anna"}}
		if got := lines(w, Decide(w, noon)); len(got) != 1 || got[0] != "1 user b 100" {
			t.Errorf("%s: a user's wish: %q", what, got)
		}
	}
	home := world(container("1", 0, func(c *Container) { c.Home, c.Refused = 1, []int{1} }))
	if got := lines(home, Decide(home, noon)); len(got) > 0 {
		t.Errorf("brought back to a node that refused it: %q", got)
	}
}

// TestHeld: a container whose move was cancelled stays, with the reason, until a user moves it.
func TestHeld(t *testing.T) {
	hold := func(c *Container) { c.Held = "ben" }
	w := drain(world(container("1", 0, hold), container("2", 0)), 0, time.Time{})
	intents := Decide(w, noon)
	if got := lines(w, intents); !slices.Equal(got, []string{"1 drain - 50", "2 drain b 50"}) ||
		!strings.Contains(intents[0].Reason, "ben cancelled its move, so it stays until a user moves it") {
		t.Errorf("%q: %q", got, intents[0].Reason)
	}
	w.Requests = []Request{{Container: 0, Target: 2, By: "anna"}}
	if got := lines(w, Decide(w, noon)); !slices.Equal(got, []string{"1 user c 100", "2 drain b 50"}) {
		t.Errorf("a user's wish: %q", got)
	}
	home := world(container("1", 0, hold, func(c *Container) { c.Home = 1 }))
	if got := lines(home, Decide(home, noon)); len(got) > 0 {
		t.Errorf("brought back: %q", got)
	}
}
