package location

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// world is node a, whose pool is 10.88.1.0/24, with its containers and its routes.
type world struct {
	containers []engine.Container
	fails      error // of the engines
	leases     map[netip.Addr]string
	routes     map[netip.Addr]network.Destination
	broken     error // of the routes
	bridged    []network.BridgedPlace
	heard      map[string]string
	reached    bool
}

func (w *world) All(context.Context) ([]engine.Container, error) { return w.containers, w.fails }

func (w *world) WithAddresses(context.Context) ([]engine.Container, error) {
	return w.containers, w.fails
}

func (w *world) AtHome(address netip.Addr) bool { return address.As4()[2] == 1 }

func (w *world) Of(address netip.Addr) string { return w.leases[address] }

func (w *world) Home(address netip.Addr) (int, error) {
	if address.As4()[0] != 10 {
		return 0, errors.New("not of the pool")
	}
	return int(address.As4()[2]), nil
}

func (w *world) Route(address netip.Addr, to network.Destination) error {
	if w.broken == nil {
		w.routes[address] = to
	}
	return w.broken
}

func (w *world) Unroute(address netip.Addr) error {
	delete(w.routes, address)
	return w.broken
}

func (w *world) BridgedPlaces() []network.BridgedPlace { return w.bridged }

func (w *world) ForgetBridged(netip.Addr) error {
	w.bridged = nil
	return w.broken
}

func newWorld(t *testing.T, m moves) (*world, *Locations) {
	t.Helper()
	w := &world{leases: map[netip.Addr]string{}, routes: map[netip.Addr]network.Destination{},
		heard: map[string]string{}, reached: true}
	return w, New(t.Context(), Config{
		Self: "a", Lists: w, Leases: w, Network: w, Moves: m,
		Reaches: func(string) bool { return w.reached },
		Heard:   func(container, node string) { w.heard[container] = node },
		Log:     slog.New(slog.DiscardHandler),
	})
}

func containerAt(id, address string) engine.Container {
	return engine.Container{State: engine.Running, PID: 7, Definition: engine.Definition{
		ID: id, Network: engine.Network{Address: netip.MustParseAddr(address)},
	}}
}

func guest(id, address string) *api.Location { return &api.Location{Address: address, Container: id} }

// TestGuests: told of are the containers that run here, and that are at home at another node.
func TestGuests(t *testing.T) {
	w, l := newWorld(t, moves{departed: map[string]bool{"departed": true}})
	ended := containerAt("ended", "10.88.2.5")
	ended.PID = 0
	bridge := containerAt("on a bridge of its engine", "172.30.0.3")
	bridge.Definition.Network.Bridge = "birds"
	w.containers = []engine.Container{
		containerAt("ours", "10.88.1.2"), containerAt("guest", "10.88.2.2"),
		containerAt("departed", "10.88.2.3"), ended, bridge,
	}
	w.bridged = []network.BridgedPlace{
		{Container: "came", Address: netip.MustParseAddr("172.30.0.2"), Here: true, Came: true},
		{Container: "went", Address: netip.MustParseAddr("172.30.0.4"), Via: "b"},
	}
	told := map[string]string{}
	for _, one := range l.Guests() {
		if told[one.Container] = one.Address; one.Node != "a" {
			t.Errorf("%v", one)
		}
	}
	want := map[string]string{"guest": "10.88.2.2"}
	for _, place := range w.bridged {
		if place.Stable() {
			want[place.Container] = place.Address.String()
		}
	}
	if !maps.Equal(told, want) {
		t.Errorf("told of %v, want %v", told, want)
	}
	if w.fails = errors.New("no answer"); l.Guests() != nil {
		t.Error("without the engine's answer, guests are told of")
	}
}

// TestHearGuests: a guest of another node is routed there until that node no longer tells of it. Who has an
// address here, or is moved by a migration, or has an address that was given to another, is not.
func TestHearGuests(t *testing.T) {
	w, l := newWorld(t, moves{moving: map[string]bool{"moving": true}})
	w.containers = []engine.Container{containerAt("here", "10.88.2.9")}
	leased, other := netip.MustParseAddr("10.88.1.2"), netip.MustParseAddr("10.88.3.2")
	w.leases[leased] = "leased"
	routes := func(when string, want map[netip.Addr]network.Destination) {
		t.Helper()
		if !maps.Equal(w.routes, want) {
			t.Errorf("%s: %v, want %v", when, w.routes, want)
		}
	}
	all := []*api.Location{
		guest("here", "10.88.2.9"), guest("moving", "10.88.3.8"), guest("liar", "10.88.1.7"),
		guest("nonsense", "x"), guest("leased", leased.String()), guest("other", other.String()),
	}
	w.broken = errors.New("no")
	l.HearGuests("b", all)
	routes("routes fail", map[netip.Addr]network.Destination{})
	w.broken, w.fails = nil, errors.New("no answer")
	l.HearGuests("b", all)
	routes("what is here is unknown", map[netip.Addr]network.Destination{})
	w.fails = nil
	l.HearGuests("b", all)
	both := map[netip.Addr]network.Destination{leased: network.Via("b"), other: network.Via("b")}
	routes("heard", both)
	if !l.Elsewhere(leased, "leased") || l.Elsewhere(leased, "other") || w.heard["other"] != "b" {
		t.Errorf("%v", w.heard)
	}
	l.HearGuests("c", nil)
	routes("another node does not tell of them", both)
	l.HearGuests("b", nil)
	routes("b does not tell of them", map[netip.Addr]network.Destination{leased: network.Via("b")})
	if l.MayRelease("c", leased) || !l.MayRelease("b", leased) {
		t.Error("the node that had it last has the word")
	}
	if l.Released(leased); !l.MayRelease("c", leased) {
		t.Error("it was released")
	}
}

// TestDropNode: a node that was removed has no containers, unless a migration says so.
func TestDropNode(t *testing.T) {
	moving := map[string]bool{}
	w, l := newWorld(t, moves{moving: moving})
	for _, id := range []string{"one", "two"} {
		address := map[string]string{"one": "10.88.3.2", "two": "10.88.3.3"}[id]
		definition := containerAt(id, address).Definition
		w.routes[definition.Network.Address] = network.Via("b")
		l.movedTo("b", definition)
	}
	moving["two"] = true
	l.DropNode("c")
	if len(w.routes) != 2 {
		t.Errorf("another node: %v", w.routes)
	}
	l.DropNode("b")
	if _, there := w.routes[netip.MustParseAddr("10.88.3.3")]; !there || len(w.routes) != 1 {
		t.Errorf("%v", w.routes)
	}
}

// TestLeft: the way to a container that has come home is forgotten, and the place of another one is noted; an
// address of no pool has no way.
func TestLeft(t *testing.T) {
	w, l := newWorld(t, moves{})
	b := identity.Node{Name: "b", Number: 2}
	home, away := containerAt("one", "10.88.2.2").Definition, containerAt("two", "10.88.3.3").Definition
	for _, one := range []engine.Definition{home, away} {
		w.routes[one.Network.Address] = network.Via("b")
		if err := l.Left(b, one); err != nil {
			t.Error(err)
		}
	}
	if _, there := w.routes[away.Network.Address]; !there || len(w.routes) != 1 {
		t.Errorf("%v", w.routes)
	}
	l.DropNode("b")
	if len(w.routes) > 0 {
		t.Errorf("the place was not noted: %v", w.routes)
	}
	if l.Left(b, containerAt("three", "192.0.2.1").Definition) == nil {
		t.Error("an address of another pool has a home")
	}
	bridged := home
	bridged.Network.Bridge = "docker0"
	if err := l.Left(b, bridged); err != nil {
		t.Errorf("an address of no pool: %v", err)
	}
}

// TestMayRelease: only the node that has a container may say that it is no more, until no node has
// told of it for a while.
func TestMayRelease(t *testing.T) {
	address := netip.MustParseAddr("10.88.1.2")
	for what, c := range map[string]struct {
		at   place
		b, c bool // whether these nodes may
	}{
		"b has it":           {place{node: "b", container: "one"}, true, false},
		"b has just lost it": {place{node: "b", container: "one", left: time.Now()}, true, false},
		"b lost it some time ago": {place{node: "b", container: "one",
			left: time.Now().Add(-2 * unclaimedFor)}, true, true},
	} {
		l := &Locations{away: map[netip.Addr]place{address: c.at}}
		if b, other := l.MayRelease("b", address), l.MayRelease("c", address); b != c.b || other != c.c {
			t.Errorf("%s: b may: %t, c may: %t", what, b, other)
		}
	}
	if !(&Locations{}).MayRelease("c", address) {
		t.Error("nobody may give back an address that no node has told of")
	}
}

// TestBridgedMovesOn: the forwarding to a container on a bridge follows the node that tells of it, and ends
// when nobody does.
func TestBridgedMovesOn(t *testing.T) {
	moving := map[string]bool{}
	w, l := newWorld(t, moves{moving: moving})
	address := netip.MustParseAddr("172.30.0.2")
	w.bridged = []network.BridgedPlace{{Container: "one", Address: address, Via: "b"}}
	here := []*api.Location{guest("one", address.String())}
	l.HearGuests("b", here)
	l.HearGuests("c", here)
	if len(w.routes) > 0 {
		t.Errorf("b has it: %v", w.routes)
	}
	l.HearGuests("b", nil)
	l.HearGuests("c", here)
	if w.routes[address] != network.Via("c") {
		t.Errorf("it has moved on to c: %v", w.routes)
	}
	w.bridged[0].Via = "c"
	moving["one"] = true
	for range 2 * missesAllowed {
		l.HearGuests("c", nil)
	}
	if len(w.bridged) != 1 {
		t.Error("a migration says where it is")
	}
	moving["one"] = false
	for range missesAllowed {
		l.HearGuests("c", nil)
	}
	if len(w.bridged) > 0 {
		t.Error("nobody has it any more")
	}
}
