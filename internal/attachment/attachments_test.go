package attachment

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
)

func newAttachments(n *node, unopened error) (c *Attachments, runs chan string) {
	runs = make(chan string, 10)
	return New(Config{
		Engines: n.engines, Own: n.own, Unopened: unopened, Network: n.network, Routes: n.network,
		Addressed: func(ctx context.Context) ([]engine.Container, error) {
			all, err := n.own.List(ctx)
			others, failed := n.other.List(ctx)
			return append(all, others...), errors.Join(err, failed)
		},
		Adopter: n.adopter, Runs: func(d engine.Definition) { runs <- d.ID },
		Log: slog.New(slog.DiscardHandler),
	}), runs
}

// ours is a container of the node's own engine.
func ours(letter string, state engine.State) engine.Container {
	one := pooled(letter, state, os.Getpid())
	one.Definition.EngineName = ""
	return one
}

// TestReconcile: when the agent starts, containers that run are connected, the routes to those that are away
// stay, and the rest goes.
func TestReconcile(t *testing.T) {
	n := newNode(t)
	n.own.has = []engine.Container{
		ours("a", engine.Running), ours("e", engine.Exited), ours("d", engine.Damaged),
	}
	n.other.has = []engine.Container{pooled("o", engine.Running, os.Getpid())}
	n.network.leases = []network.Lease{
		{Container: idOf("a"), Address: netip.MustParseAddr("10.88.1.2")},
		{Container: idOf("x"), Address: netip.MustParseAddr("10.88.1.9")},
	}
	c, runs := newAttachments(n, nil)
	if err := c.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, "reconciled", n.network.called(),
		"reconcile 4 [10.88.1.2 10.88.1.2 10.88.1.2 10.88.1.2 10.88.1.9]",
		"attach a 10.88.1.2", "route 10.88.1.2 to a", "adopt o 10.88.1.2 mtu 1400")
	if got := <-runs + <-runs; got != idOf("a")+idOf("o") && got != idOf("o")+idOf("a") {
		t.Errorf("runs: %q", got)
	}
	n.own.down = errDown
	if err := c.Reconcile(t.Context()); !errors.Is(err, errDown) {
		t.Errorf("%v: the node's own engine does not answer", err)
	}
}

// TestUnknownIsNotRemoved: as long as an engine does not answer, nobody removes the attachments of its
// containers.
func TestUnknownIsNotRemoved(t *testing.T) {
	for what, c := range map[string]struct{ down, unopened error }{
		"does not answer": {errDown, nil}, "cannot be opened": {nil, errDown},
	} {
		n := newNode(t)
		n.own.has, n.other.down = []engine.Container{ours("a", engine.Running)}, c.down
		attachments, _ := newAttachments(n, c.unopened)
		if err := attachments.Reconcile(t.Context()); err != nil {
			t.Errorf("%s: %v: the agent would not start", what, err)
		}
		expect(t, what, n.network.called(), "attach a 10.88.1.2", "route 10.88.1.2 to a")
	}
}

// TestReconcileOthers: the containers of other engines, which have made their networks themselves, are not
// connected, and run. A container that cannot be connected keeps nobody from working.
func TestReconcileOthers(t *testing.T) {
	n := newNode(t)
	host := pooled("h", engine.Running, os.Getpid())
	host.Definition.Network = engine.Network{}
	n.other.has = []engine.Container{
		onBridge("b", engine.Running, "172.30.0.2"), pooled("o", engine.Running, os.Getpid()), host,
	}
	n.network.fails = errDown
	c, runs := newAttachments(n, nil)
	c.ReconcileOthers(t.Context())
	for range 2 {
		if id := <-runs; id != idOf("b") && id != idOf("h") {
			t.Errorf("%s runs", id)
		}
	}
	n.network.called()
	n.other.has = nil
	n.own.has = []engine.Container{ours("a", engine.Running)}
	attachments, runs := newAttachments(n, errDown)
	if err := attachments.Reconcile(t.Context()); err != nil || <-runs != idOf("a") {
		t.Errorf("%v: it cannot be connected", err)
	}
}

// TestRouteHere: the way to a container that does not run goes; one whose engine hangs may run.
func TestRouteHere(t *testing.T) {
	n := newNode(t)
	c, _ := newAttachments(n, nil)
	one := pooled("a", engine.Running, os.Getpid())
	for _, test := range []struct {
		what  string
		state engine.State
		down  error
		want  []string
		err   error
	}{
		{"it runs", engine.Running, nil, []string{"route 10.88.1.2 to a"}, nil},
		{"it is frozen", engine.Frozen, nil, []string{"route 10.88.1.2 to a"}, nil},
		{"it has ended", engine.Exited, nil, []string{"unroute 10.88.1.2"}, nil},
		{"it was removed", "", engine.ErrNotFound, []string{"unroute 10.88.1.2"}, nil},
		{"its engine fails", "", errDown, nil, errDown},
	} {
		one.State = test.state
		n.other.has, n.other.down = []engine.Container{one}, test.down
		if err := c.RouteHere(t.Context(), one.Definition); !errors.Is(err, test.err) {
			t.Errorf("%s: %v", test.what, err)
		}
		expect(t, test.what, n.network.called(), test.want...)
	}
	bridge := onBridge("b", engine.Running, "172.30.0.2")
	if err := c.RouteHere(t.Context(), bridge.Definition); err != nil {
		t.Error(err)
	}
	expect(t, "a bridge where nothing was changed", n.network.called())
	if netns, err := c.Attach(t.Context(), bridge.Definition); netns != "" || err != nil {
		t.Errorf("%q, %v: its engine makes its namespace", netns, err)
	}
}
