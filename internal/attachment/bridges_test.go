package attachment

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/patience"
)

// TestGone: a container that has come and ends may be started again by its engine: it is none only
// when that has removed it, or has given its address to another.
func TestGone(t *testing.T) {
	at := netip.MustParseAddr("172.30.0.2")
	one, down := onBridge, errDown
	ended := one("a", engine.Exited, "172.30.0.2")
	for name, c := range map[string]struct {
		came  bool
		now   engine.Container
		err   error
		all   []engine.Container
		gone  bool
		fails error
	}{
		"it runs": {true, one("a", engine.Running, "172.30.0.2"), nil, nil,
			false, nil},
		"it runs by another address": {true, one("a", engine.Running, "172.30.0.3"), nil, nil,
			true, nil},
		"it has ended": {true, ended, nil,
			[]engine.Container{ended, one("b", engine.Running, "172.30.0.3")}, false, nil},
		"another has its address": {true, ended, nil,
			[]engine.Container{ended, one("b", engine.Running, "172.30.0.2")}, true, nil},
		"another had its address": {true, ended, nil,
			[]engine.Container{ended, one("b", engine.Exited, "172.30.0.2")}, false, nil},
		"it never came": {false, ended, nil, nil, true, nil},
		"it is frozen": {true, one("a", engine.Frozen, "172.30.0.2"), nil, nil, false,
			nil},
		"it is removed":                      {true, engine.Container{}, engine.ErrNotFound, nil, true, nil},
		"nobody knows":                       {true, engine.Container{}, down, nil, false, down},
		"nobody knows whose address that is": {true, ended, nil, nil, false, down},
	} {
		place := network.BridgedPlace{Container: idOf("a"), Address: at, Here: true, Came: c.came}
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

func newBridges(n *node, looks *inventory.Looks) *Bridges {
	return NewBridges(BridgesConfig{
		Engines: n.engines, Looks: looks, Network: n.network, Ports: n.network, Moves: n.moves,
		Member:  func(int) bool { return true },
		Removed: func(container string) { n.removed = append(n.removed, container) },
		Log:     slog.New(slog.DiscardHandler),
	})
}

func place(letter, address string) network.BridgedPlace {
	return network.BridgedPlace{Container: idOf(letter), Address: netip.MustParseAddr(address), Here: true}
}

// TestFollowBridges: a container that was started anew is followed to its new namespace, one that is gone is
// let go, and one that has left gives way to another one with its address. What a migration moves, or an
// engine that does not answer has, stays as it is.
func TestFollowBridges(t *testing.T) {
	n := newNode(t)
	var looks inventory.Looks
	b := newBridges(n, &looks)
	left := place("l", "172.30.0.5")
	left.Here, left.Via = false, "b"
	n.network.bridged = []network.BridgedPlace{
		place("a", "172.30.0.2"), place("g", "172.30.0.3"), place("m", "172.30.0.4"), left,
	}
	n.moves.moving[idOf("m")] = true
	taker := onBridge("t", engine.Running, "172.30.0.5")
	taker.Definition.Ports = []engine.Published{{HostPort: 8080}}
	n.other.has = []engine.Container{onBridge("a", engine.Running, "172.30.0.2"), taker}
	n.network.yields = []network.Published{{HostPort: 8080}}
	b.follow(t.Context())
	looks.Wait()
	calls := n.network.called()
	slices.Sort(calls) // one engine's containers after another's
	expect(t, "followed", calls, "detach g", "forget 172.30.0.5", "keep a 172.30.0.2", "strangers",
		"yield [8080]")
	expect(t, "other nodes are told", n.removed, idOf("g"))
	n.other.down = errDown
	b.follow(t.Context())
	looks.Wait()
	expect(t, "the engine does not answer", n.network.called(), "strangers", "yield []")
	n.other.down = engine.ErrAway
	n.network.bridged = n.network.bridged[:1] // which the engine has said that it has
	b.follow(t.Context())
	looks.Wait()
	expect(t, "the engine is away", n.network.called(), "strangers")
}

// TestRemovedElsewhere: only the node that has a container ends the forwarding to it.
func TestRemovedElsewhere(t *testing.T) {
	n := newNode(t)
	b := newBridges(n, nil)
	left, here := place("l", "172.30.0.5"), place("h", "172.30.0.6")
	left.Here, left.Via = false, "b"
	n.network.bridged = []network.BridgedPlace{left, here}
	for _, c := range []struct{ node, container string }{{"c", "l"}, {"b", "h"}, {"b", "x"}} {
		if err := b.Removed(c.node, idOf(c.container)); err != nil {
			t.Error(err)
		}
		expect(t, c.node+" says so of "+c.container, n.network.called())
	}
	n.moves.moving[idOf("l")] = true
	if err := b.Removed("b", idOf("l")); err != nil || len(n.network.called()) > 0 {
		t.Errorf("it is being moved: %v", err)
	}
	n.moves.moving[idOf("l")] = false
	if err := b.Removed("b", idOf("l")); err != nil {
		t.Error(err)
	}
	expect(t, "b says so", n.network.called(), "forget 172.30.0.5")
}

// TestHungBridges: an engine that does not answer in time is not asked for the next container.
func TestHungBridges(t *testing.T) {
	n := newNode(t)
	b := newBridges(n, nil)
	hangs := &hanging{fakeEngine: n.other}
	b.config.Engines = engine.NewSet(n.own, hangs)
	places := []network.BridgedPlace{place("a", "172.30.0.2"), place("b", "172.30.0.3")}
	b.followPlaces(t.Context(), places, nil)
	if hangs.asked != 1 {
		t.Errorf("asked %d times", hangs.asked)
	}
}

// hanging is an engine that is asked for a container, and does not answer in time.
type hanging struct {
	*fakeEngine
	asked int
}

func (h *hanging) Inspect(context.Context, string) (engine.Container, error) {
	h.asked++
	return engine.Container{}, &patience.LateError{Who: "the engine", Waited: time.Second}
}
