package identity

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func node(number int, name, address string, revision uint64) Node {
	return Node{Name: name, Number: number, Address: address, Revision: revision}
}

func TestMerge(t *testing.T) {
	a, b := node(1, "a", "h:1", 1), node(2, "b", "h:2", 1)
	moved := node(2, "b", "h:3", 2)
	for what, c := range map[string]struct {
		known, heard, want []Node
		changed            bool
	}{
		"nothing": {nil, nil, nil, false},
		"new":     {[]Node{a}, []Node{b}, []Node{a, b}, true},
		"same":    {[]Node{a, b}, []Node{b}, []Node{a, b}, false},
		"newer":   {[]Node{a, b}, []Node{moved}, []Node{a, moved}, true},
		"older":   {[]Node{a, moved}, []Node{b}, []Node{a, moved}, false},
		"invalid": {[]Node{a}, []Node{{Name: "x"}, node(255, "x", "h:1", 9)}, []Node{a}, false},
		"name moves": {[]Node{a, b}, []Node{node(3, "b", "h:4", 1)}, []Node{a, node(3, "b", "h:4", 1)},
			true},
		"equal revision": {[]Node{node(2, "b", "h:2", 1)}, []Node{node(2, "b", "h:9", 1)},
			[]Node{node(2, "b", "h:9", 1)}, true},
	} {
		got, changed := Merge(c.known, c.heard)
		if !slices.Equal(got, c.want) || changed != c.changed {
			t.Errorf("%s: got %v, %v", what, got, changed)
		}
	}
}

// TestMergeConverges checks that all nodes end with the same list, in whatever order lists arrive.
func TestMergeConverges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all []Node
		for range 12 {
			all = append(all, node(1+random.IntN(4), string(rune('a'+random.IntN(4))),
				string(rune('p'+random.IntN(3)))+":1", random.Uint64N(3)))
		}
		want, _ := Merge(nil, all)
		for range 5 {
			random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			if got, _ := Merge(nil, all); !slices.Equal(got, want) {
				t.Fatalf("from %v: %v and %v", all, got, want)
			}
		}
	}
}

func TestParseAddress(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:7443", "host.example:80": "host.example:80", "fd00::1": "[fd00::1]:7443",
		"[fd00::1]": "[fd00::1]:7443", "[fd00::1]:9": "[fd00::1]:9", "a": "a:7443",
		"127.0.0.1:65535": "127.0.0.1:65535",
	} {
		if got, err := ParseAddress(in); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", ":7443", "a:", "a:0", "a:070", "a:65536", "a b", "a/b:1", "0.0.0.0",
		"[::]:1", "224.0.0.1",
		"-a", "a:1:2", "http://a", "a\n:1"} {
		if got, err := ParseAddress(in); err == nil {
			t.Errorf("%q was taken as %s", in, got)
		}
	}
}

func TestSubnet(t *testing.T) {
	if got, err := Subnet(pool(), 254); err != nil || got.String() != "10.88.254.0/24" {
		t.Errorf("%s, %v", got, err)
	}
	for _, number := range []int{0, -1, 255} {
		if _, err := Subnet(pool(), number); err == nil {
			t.Errorf("node %d has a subnet", number)
		}
	}
}

func TestNodesFile(t *testing.T) {
	state := t.TempDir()
	if nodes, err := LoadNodes(state); err != nil || nodes != nil {
		t.Errorf("none: %v, %v", nodes, err)
	}
	want := []Node{node(1, "a", "h:1", 1), node(2, "b", "h:2", 7)}
	if err := SaveNodes(state, want); err != nil {
		t.Fatal(err)
	}
	if got, err := LoadNodes(state); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if SaveNodes(state, []Node{want[0], want[0]}) == nil {
		t.Error("a list with a number twice was written")
	}
}
