package placement

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

var epoch = time.Unix(1_800_000_000, 0)

func at(s float64) time.Time { return epoch.Add(seconds(s)) }

// path returns a policy with stops at these times in seconds.
func path(stops ...any) Policy {
	p := Policy{Container: "c", Until: at(3600)}
	for i := 0; i < len(stops); i += 2 {
		p.Path = append(p.Path, Stop{stops[i].(string), at(stops[i+1].(float64))})
	}
	return p
}

// around returns a situation in which every other node can be reached, and a copy takes need seconds and
// 100 bytes.
func around(now, need float64, names string) Situation {
	s := Situation{Now: at(now), Node: "a", MemoryBytes: 1000}
	for i, name := range strings.Fields(names) {
		s.Nodes = append(s.Nodes, Node{
			Name: name, Reachable: true, RTT: time.Duration(i+1) * time.Millisecond, Bandwidth: 100e6,
			Need: Cost{Seconds: need, High: need, Bytes: 100 * need},
		})
	}
	return s
}

func (p Policy) with(node string, fresh float64) Policy {
	p = p.Clone()
	c := p.Make(node)
	c.Bytes, c.Fresh = 1000, at(fresh)
	return p
}

func (s Situation) live(node string) Situation { s.Live = node; return s }

func (s Situation) without(node string) Situation {
	s.Nodes = slices.Clone(s.Nodes)
	for i := range s.Nodes {
		s.Nodes[i].Reachable = s.Nodes[i].Reachable && s.Nodes[i].Name != node
	}
	return s
}

func TestPath(t *testing.T) {
	near := path("b", 100.0, "c", 200.0)
	tight := path("b", 100.0, "c", 110.0)
	for name, test := range map[string]struct {
		policy Policy
		in     Situation
		live   string
		round  bool
	}{
		"long before":                       {near, around(0, 10, "b c"), "", false},
		"three times what it takes is left": {near, around(70, 10, "b c"), "b", false},
		"it was begun, and less is left":    {near, around(75, 1, "b c").live("b"), "b", false},
		"it is being made":                  {near, around(75, 10, "b c").live("b"), "b", false},
		"it is there, and the deadline far": {near.with("b", 75), around(85, 10, "b c").live("b"), "b",
			false},
		"right before the deadline": {near.with("b", 75), around(98.5, 1, "b c").live("b"), "b",
			true},
		"just brought up to date": {near.with("b", 98.4), around(98.6, 1, "b c").live("b"), "b",
			false},
		"the container is late": {near.with("b", 99), around(104, 1, "b c").live("b"), "b",
			true},
		"an idle copy":               {near.with("b", 10), around(80, 1, "b c"), "", false},
		"an idle copy, near its end": {near.with("b", 10), around(96.5, 1, "b c"), "b", false},
		"late: the next is due too": {near.with("b", 99), around(170, 10, "b c").live("b"), "c",
			false},
		"no time between two": {tight.with("b", 30), around(35, 10, "b c").live("b"), "b",
			false},
		"no time between two: made before": {tight.with("b", 30), around(60, 7, "b c").live("b"), "c",
			false},
		"not so late that the first suffers": {tight.with("b", 30), around(80, 7, "b c").live("b"), "b",
			false},
		"not when the first is due":      {tight.with("b", 30), around(99.5, 10, "b c").live("b"), "b", true},
		"made before: the first is idle": {tight.with("b", 30), around(65, 7, "b c").live("c"), "c", false},
		"the first is away":              {tight, around(80, 10, "b c").without("b"), "c", false},
		"both are away":                  {tight, around(80, 10, "b c").without("b").without("c"), "", false},
		"it was at the first":            {path("c", 110.0), around(80, 10, "b c"), "c", false},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			d := test.policy.Decide(test.in)
			if d.Live != test.live || d.Round != test.round || d.Over != "" {
				t.Errorf("%+v", d)
			}
		})
	}
}

// TestPathRate: the copy should be complete half way to its deadline, and a rate above the link's bandwidth
// means no limit.
func TestPathRate(t *testing.T) {
	p := path("b", 101.0)
	in := around(0, 50, "b")
	in.Nodes[0].Need.Bytes = 50e6
	if d := p.Decide(in); d.Live != "b" || d.Rate != 8e6 {
		t.Errorf("%+v", d)
	}
	p.BandwidthLimit = 5e6
	if d := p.Decide(in); d.Rate != 5e6 {
		t.Errorf("with a limit: %+v", d)
	}
	p.BandwidthLimit, in.Now = 0, at(95)
	if d := p.Decide(in); d.Rate != 0 {
		t.Errorf("short of time: %+v", d)
	}
	in = around(10, 0, "b").live("b") // everything predicted was sent, and more is to come
	if d := p.Decide(in); d.Live != "b" || d.Rate != 0 {
		t.Errorf("predicted too little: %+v", d)
	}
}

func TestOutlook(t *testing.T) {
	in := around(0, 10, "b c d")
	for i := range in.Nodes {
		in.Nodes[i].Need.High = 20
	}
	d := path("b", 15.0, "c", 19.0, "d", 200.0).Decide(in.without("e"))
	want := []Outlook{MayBeLate, Late, InTime}
	for i, target := range d.Targets {
		if target.Outlook != want[i] {
			t.Errorf("%s: %+v", target.Node, target)
		}
	}
	if d.Targets[1].Late != time.Second || d.Targets[2].From != "c" || d.Targets[2].Begin != at(139) {
		t.Errorf("%+v", d.Targets)
	}
	if d := path("b", 15.0).with("b", 1).Decide(in); d.Targets[0].Outlook != There {
		t.Errorf("it is there: %+v", d)
	}
	if d := path("b", 15.0).Decide(in.without("b")); d.Targets[0].Outlook != Unreachable || d.Live != "" {
		t.Errorf("away: %+v", d)
	}
}

func TestPathEnds(t *testing.T) {
	p := path("b", 10.0, "c", 20.0).with("b", 5).with("x", 1)
	if d := p.Decide(around(15, 1, "b c x")); !slices.Equal(d.Drop, []string{"x"}) {
		t.Errorf("off the path: %+v", d)
	}
	if d := p.Decide(around(25, 1, "b c x").live("b")); !slices.Equal(d.Drop, []string{"b", "x"}) ||
		d.Live != "c" {
		t.Errorf("it was not at b in time: %+v", d)
	}
	p.Arrive("b")
	if len(p.Path) != 1 || p.At("b") != nil || p.Returns("b") || !p.Returns("c") {
		t.Errorf("at b: %+v", p)
	}
	p.Arrive("c")
	if d := p.Decide(around(25, 1, "b")); d.Over == "" {
		t.Errorf("at its end: %+v", d)
	}
	if d := path("b", 10.0).Decide(around(3600, 1, "b")); d.Over == "" {
		t.Errorf("after its time: %+v", d)
	}
}

func TestNearest(t *testing.T) {
	two := Policy{Container: "c", Nearest: 2, Until: at(3600)}
	cheap := two
	cheap.BudgetBytes = 1500
	spare := two
	spare.BudgetBytes = 3000
	both := two.with("b", 100).with("c", 110)
	busy := around(200, 1, "b c d").live("c")
	busy.Busy = true
	for name, test := range map[string]struct {
		policy Policy
		in     Situation
		live   string
		round  bool
		drop   string
	}{
		"the nearest first":  {two, around(0, 1, "b c d"), "b", false, ""},
		"then the next":      {two.with("b", 1), around(2, 1, "b c d").live("b"), "c", false, ""},
		"nothing is due":     {both, around(115, 1, "b c d").live("c"), "c", false, ""},
		"the oldest in turn": {both, around(130, 1, "b c d").live("c"), "b", false, ""},
		"a round of the live one": {two.with("b", 120).with("c", 110),
			around(140, 1, "b c d").live("c"), "c", true, ""},
		"beside a migration": {both, busy, "c", false, ""},
		"one is away": {both, around(130, 1, "b c d").live("c").without("b"), "d", false,
			"b"},
		"a little nearer is not nearer": {two.with("c", 100).with("d", 110),
			around(115, 1, "b c d").live("d"), "b", false, "d"},
		"one fits": {cheap.with("b", 100), around(105, 1, "b c d").live("b"), "b",
			false, ""},
		"what was near stays": {spare.with("b", 100).with("c", 110).with("e", 90),
			around(115, 1, "b c d e").live("c"), "c", false, ""},
		"the farthest goes first": {spare.with("b", 100).with("c", 110).with("e", 90).with("d", 20),
			around(115, 1, "b c d e").live("c"), "c", false, "e"},
		"what is away goes first": {spare.with("b", 100).with("c", 110).with("e", 90).with("d", 20),
			around(115, 1, "b c d e").live("c").without("d"), "c", false, "d"},
		"without a budget none is spare": {both.with("e", 90), around(115, 1, "b c d e").live("c"), "c",
			false, "e"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			d := test.policy.Decide(test.in)
			if d.Live != test.live || d.Round != test.round || strings.Join(d.Drop, " ") != test.drop {
				t.Errorf("%+v", d)
			}
		})
	}
	cheap.BudgetBytes = 999
	if d := cheap.Decide(around(0, 1, "b c")); d.Live != "" || len(d.Targets) > 0 {
		t.Errorf("none fits: %+v", d)
	}
}

// TestRetries: failed attempts are repeated ever less often, and others do not wait for them.
func TestRetries(t *testing.T) {
	p := Policy{Container: "c", Nearest: 1, Until: at(3600)}
	c := p.Make("b")
	for failures, wait := range map[int]float64{1: 1, 2: 2, 4: 8, 7: 60, 1000: 60} {
		c.Failures, c.Tried = failures, at(0)
		if d := p.Decide(around(wait-0.01, 1, "b")); d.Live != "" {
			t.Errorf("%d failures: tried again after %v s", failures, wait-0.01)
		}
		if d := p.Decide(around(wait, 1, "b")); d.Live != "b" {
			t.Errorf("%d failures: not tried again after %v s", failures, wait)
		}
	}
}

func TestCheck(t *testing.T) {
	good := path("b", 1.0, "c", 2.0).with("b", 1)
	for name, spoil := range map[string]func(*Policy){
		"neither": func(p *Policy) { p.Path = nil }, "both": func(p *Policy) { p.Nearest = 1 },
		"order":  func(p *Policy) { p.Path[0].Deadline = at(9) },
		"name":   func(p *Policy) { p.Path[0].Node = strings.Repeat("x", 65) },
		"long":   func(p *Policy) { p.Path = make([]Stop, MaxStops+1) },
		"many":   func(p *Policy) { p.Path, p.Nearest = nil, MaxNearest+1 },
		"budget": func(p *Policy) { p.BudgetBytes = 1 }, "negative": func(p *Policy) { p.BudgetBytes = -1 },
		"over": func(p *Policy) { p.Until = at(0) }, "copy": func(p *Policy) { p.Copies[0].Bytes = -1 },
		"copies":         func(p *Policy) { p.Copies = make([]Copy, maxCopies+1) },
		"twice":          func(p *Policy) { p.Copies = append(p.Copies, p.Copies[0]) },
		"limit":          func(p *Policy) { p.BandwidthLimit = -1 },
		"for ever":       func(p *Policy) { p.Until = at(0).Add(2 * maxAway) },
		"far deadline":   func(p *Policy) { p.Path[1].Deadline = at(0).Add(2 * maxAway) },
		"old deadline":   func(p *Policy) { p.Path[0].Deadline = at(0).Add(-2 * maxAway) },
		"future copy":    func(p *Policy) { p.Copies[0].Fresh = at(0).Add(2 * maxFuture) },
		"future attempt": func(p *Policy) { p.Copies[0].Tried = at(0).Add(2 * maxFuture) },
		"large copy":     func(p *Policy) { p.Copies[0].Bytes = MaxBytes + 1 },
		"slow copy":      func(p *Policy) { p.Copies[0].Seconds = 1e300 },
		"unkept":         func(p *Policy) { p.Copies[0].Unkept = -1 },
	} {
		bad := good.Clone()
		spoil(&bad)
		if err := bad.Check(at(0)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := good.Check(at(0)); err != nil {
		t.Error(err)
	}
	mixed := path("c", 5.0, "b", 2.0)
	if err := mixed.Sort(at(1)); err != nil || mixed.Path[0].Node != "b" {
		t.Errorf("%+v, %v", mixed, err)
	}
	if err := mixed.Sort(at(3)); err == nil || !strings.Contains(err.Error(), "deadline of b is past") {
		t.Errorf("a deadline that is past: %v", err)
	}
	moved := good.Clone()
	moved.Shift(time.Minute)
	if moved.Path[1].Deadline != at(62) || moved.Copies[0].Fresh != at(61) ||
		!moved.Copies[0].Tried.IsZero() || moved.Until != at(3660) {
		t.Errorf("%+v", moved)
	}
}

// FuzzPolicy: a policy from another node is refused, or Decide can handle it.
func FuzzPolicy(f *testing.F) {
	for _, p := range []Policy{path("b", 100.0, "c", 200.0).with("b", 3),
		{Container: "c", Nearest: 2, BudgetBytes: 5, Until: at(9)}} {
		data, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, 50.0, 3.0)
	}
	f.Fuzz(func(t *testing.T, data []byte, now, need float64) {
		var p Policy
		if json.Unmarshal(data, &p) != nil || p.Check(epoch) != nil {
			return
		}
		before := len(p.Copies)
		for _, in := range []Situation{around(now, need, "b c"),
			around(now, need, "b c").live("b").without("c"), {Now: epoch}} {
			d := p.Decide(in)
			if len(d.Drop) > before || d.Round && d.Live == "" || !(d.Rate >= 0) {
				t.Errorf("%+v", d)
			}
		}
	})
}
