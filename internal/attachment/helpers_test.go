package attachment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network"
)

// fakeNetwork notes what is asked of it.
type fakeNetwork struct {
	leases  []network.Lease
	bridged []network.BridgedPlace
	yields  []network.Published

	mu    sync.Mutex
	calls []string
	fails error
}

func (n *fakeNetwork) call(format string, of ...any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, fmt.Sprintf(format, of...))
	return n.fails
}

// called returns what was asked since the last call, and forgets it.
func (n *fakeNetwork) called() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	calls := n.calls
	n.calls = nil
	return calls
}

func (n *fakeNetwork) Adopt(_ context.Context, id, _ string, address network.Address) error {
	return n.call("adopt %.1s %s mtu %d", id, address.IP, address.MTU)
}

func (n *fakeNetwork) Detach(id string) error { return n.call("detach %.1s", id) }

func (n *fakeNetwork) ReleaseLease(id string) error { return n.call("release %.1s", id) }

func (n *fakeNetwork) MTU() int { return 1400 }

func (n *fakeNetwork) BridgedPlaces() []network.BridgedPlace { return n.bridged }

func (n *fakeNetwork) KeepBridged(_, id string, address netip.Addr) error {
	return n.call("keep %.1s %s", id, address)
}

func (n *fakeNetwork) ForgetBridged(address netip.Addr) error { return n.call("forget %s", address) }

func (n *fakeNetwork) ForgetStrangers(func(int) bool) error { return n.call("strangers") }

func (n *fakeNetwork) YieldPorts(taken []network.Published) ([]network.Published, error) {
	var ports []uint16
	for _, port := range taken {
		ports = append(ports, port.HostPort)
	}
	return n.yields, n.call("yield %v", ports)
}

func (n *fakeNetwork) KeepPassing() error { return n.call("passing") }

func (n *fakeNetwork) KeepOverlay() error { return n.call("overlay") }

func (n *fakeNetwork) Reconcile(keep network.Keep) error {
	return n.call("reconcile %d %v", len(keep.Containers), keep.Routes)
}

func (n *fakeNetwork) Leases() []network.Lease { return n.leases }

func (n *fakeNetwork) Attach(_ context.Context, id string, address network.Address) (string, error) {
	return "/netns", n.call("attach %.1s %s", id, address.IP)
}

func (n *fakeNetwork) Route(address netip.Addr, to network.Destination) error {
	return n.call("route %s to %.1s%s", address, to.Container, to.Peer)
}

func (n *fakeNetwork) Unroute(address netip.Addr) error { return n.call("unroute %s", address) }

func (n *fakeNetwork) IsBridged(id string, _ netip.Addr) bool {
	return slices.ContainsFunc(n.bridged, func(p network.BridgedPlace) bool { return p.Container == id })
}

// fakeEngine has containers, or does not answer.
type fakeEngine struct {
	engine.Engine
	name string
	has  []engine.Container
	down error
}

func (e *fakeEngine) Name() string { return e.name }

func (*fakeEngine) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (e *fakeEngine) List(context.Context) ([]engine.Container, error) {
	if e.down != nil {
		return nil, e.down
	}
	return e.has, nil
}

func (e *fakeEngine) Inspect(_ context.Context, ref string) (engine.Container, error) {
	if e.down != nil {
		return engine.Container{}, e.down
	}
	for _, one := range e.has {
		if one.Definition.ID == ref {
			return one, nil
		}
	}
	return engine.Container{}, engine.ErrNotFound
}

// fakeMoves are migrations that the test knows of.
type fakeMoves struct{ moving, left map[string]bool }

func (m fakeMoves) Moving(container string) bool { return m.moving[container] }

func (m fakeMoves) Left(container string) bool { return m.left[container] }

// cluster is what other nodes have to do with: addresses below 10.88.1 are this node's.
type cluster struct {
	elsewhere, gaveBack []string
	released            []netip.Addr
}

func (*cluster) AtHome(address netip.Addr) bool { return address.As4()[2] == 1 }

func (c *cluster) GiveBack(definition engine.Definition) error {
	c.gaveBack = append(c.gaveBack, definition.ID)
	return nil
}

func (c *cluster) Elsewhere(_ netip.Addr, container string) bool {
	return slices.Contains(c.elsewhere, container)
}

func (c *cluster) Released(address netip.Addr) { c.released = append(c.released, address) }

// node is a node with an engine of its own and another one, whose containers have addresses of the pool.
type node struct {
	network    *fakeNetwork
	cluster    *cluster
	own, other *fakeEngine
	engines    *engine.Set
	moves      fakeMoves
	removed    []string // other nodes were told of
	adopter    *Adopter
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		network: &fakeNetwork{}, cluster: &cluster{}, own: &fakeEngine{}, other: &fakeEngine{name: "docker"},
		moves: fakeMoves{map[string]bool{}, map[string]bool{}},
	}
	n.engines = engine.NewSet(n.own, n.other)
	n.again(t, filepath.Join(t.TempDir(), "adoptions.json"))
	return n
}

// again starts a new agent that finds these notes.
func (n *node) again(t *testing.T, path string) {
	t.Helper()
	n.adopter = NewAdopter(t.Context(), AdopterConfig{
		Path: path, Engines: n.engines, Routed: []engine.Engine{n.other}, Network: n.network,
		Leases: n.cluster, Locations: n.cluster, Moves: n.moves,
		Removed: func(container string) { n.removed = append(n.removed, container) },
		Log:     slog.New(slog.DiscardHandler),
	})
}

// abroad is an address of the pool that belongs to another node.
func (*node) abroad() netip.Addr { return netip.MustParseAddr("10.88.2.2") }

// idOf makes an id of one letter.
func idOf(letter string) string { return strings.Repeat(letter, 64) }

// pooled is a container of another engine with an address of the pool.
func pooled(letter string, state engine.State, pid int) engine.Container {
	return engine.Container{State: state, PID: pid, Definition: engine.Definition{
		EngineName: "docker", ID: idOf(letter), Name: letter,
		Network: engine.Network{Address: netip.MustParseAddr("10.88.1.2"), MTU: 9000},
	}}
}

// onBridge is a container of another engine on a bridge of that engine.
func onBridge(letter string, state engine.State, address string) engine.Container {
	one := engine.Container{State: state, Definition: engine.Definition{
		EngineName: "docker", ID: idOf(letter), Name: letter,
		Network: engine.Network{Address: netip.MustParseAddr(address), Bridge: "birds"},
	}}
	if state == engine.Running {
		one.PID = 7
	}
	return one
}

func expect(t *testing.T, when string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", when, got, want)
	}
}

var errDown = errors.New("no answer")
