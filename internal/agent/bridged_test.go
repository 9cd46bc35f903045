package agent

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
)

// word is what a node says of a container on a bridge.
type word struct {
	node    string
	lists   bool
	unasked bool // the node to which its packets go cannot be reached
}

func many(count int, one word) []word { return slices.Repeat([]word{one}, count) }

// TestWhoHasContainer: no node gets what comes for a container on a bridge by saying that it has
// it, as long as the node says so to which it goes.
func TestWhoHasContainer(t *testing.T) {
	b, notB, c := word{node: "b", lists: true}, word{node: "b"}, word{node: "c", lists: true}
	alone := word{node: "c", lists: true, unasked: true}
	for name, test := range map[string]struct {
		via   string
		words []word
		want  verdict // of the last one
	}{
		"who has it":                        {"b", []word{b}, asBefore},
		"another one":                       {"b", []word{c}, asBefore},
		"another one, again and again":      {"b", many(100, c), asBefore},
		"another one, which does not":       {"b", many(100, word{node: "c"}), asBefore},
		"another one, it has left":          {"b", []word{b, notB, c}, isThere},
		"another one, it was left out once": {"b", []word{notB, b, c}, asBefore},
		"it is no more":                     {"b", many(missesAllowed, notB), isNoMore},
		"it is there still, perhaps":        {"b", many(missesAllowed-1, notB), asBefore},
		"it is there":                       {"b", append(many(missesAllowed-1, notB), b, notB), asBefore},
		"a link is lost for a moment":       {"b", append(many(missesAllowed-1, alone), c, alone), asBefore},
		"a node is lost":                    {"b", many(missesAllowed, alone), isThere},
		"nobody had it":                     {"", []word{c}, isThere},
	} {
		l, got := newLocations(nil), asBefore
		place := network.BridgedPlace{Container: "one", Address: netip.MustParseAddr("172.30.0.2"),
			Via: test.via}
		for _, said := range test.words {
			got = l.weigh(place, said.node, said.lists, !said.unasked)
		}
		if got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestGone: a container that has come and ends may be started again by its engine: it is none only
// when that has removed it, or has given its address to another.
func TestGone(t *testing.T) {
	at := netip.MustParseAddr("172.30.0.2")
	one := func(id string, state engine.State, address string) engine.Container {
		found := engine.Container{Definition: engine.Definition{ID: id, EngineName: "docker"}, State: state}
		found.Definition.Network.Address, found.Definition.Network.Bridge = netip.MustParseAddr(address),
			"birds"
		if state == engine.Running {
			found.PID = 7
		}
		return found
	}
	ended, down := one("one", engine.Exited, "172.30.0.2"), errors.New("it does not answer")
	for name, c := range map[string]struct {
		came  bool
		now   engine.Container
		err   error
		all   []engine.Container
		gone  bool
		fails error
	}{
		"it runs": {true, one("one", engine.Running, "172.30.0.2"), nil, nil,
			false, nil},
		"it runs by another address": {true, one("one", engine.Running, "172.30.0.3"), nil, nil,
			true, nil},
		"it has ended": {true, ended, nil,
			[]engine.Container{ended, one("two", engine.Running, "172.30.0.3")}, false, nil},
		"another has its address": {true, ended, nil,
			[]engine.Container{ended, one("two", engine.Running, "172.30.0.2")}, true, nil},
		"another had its address": {true, ended, nil,
			[]engine.Container{ended, one("two", engine.Exited, "172.30.0.2")}, false, nil},
		"it never came": {false, ended, nil, nil, true, nil},
		"it is frozen": {true, one("one", engine.Frozen, "172.30.0.2"), nil, nil, false,
			nil},
		"it is removed":                      {true, engine.Container{}, engine.ErrNotFound, nil, true, nil},
		"nobody knows":                       {true, engine.Container{}, down, nil, false, down},
		"nobody knows whose address that is": {true, ended, nil, nil, false, down},
	} {
		place := network.BridgedPlace{Container: "one", Address: at, Here: true, Came: c.came}
		all := func() ([]engine.Container, error) {
			if c.err == nil {
				return c.all, c.fails
			}
			return nil, c.err
		}
		if gone, err := isGone(place, c.now, c.err, all); gone != c.gone || !errors.Is(err, c.fails) {
			t.Errorf("%s: %t, %v", name, gone, err)
		}
	}
}
