package containers

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

var errFailed = errors.New("failed")

// node does what a life of containers needs of its node, notes that, and fails at one of it.
type node struct {
	engine.Engine
	did   []string
	fails string
	state engine.State
	home  bool
}

func (n *node) do(what string) error {
	n.did = append(n.did, what)
	if what == n.fails {
		return errFailed
	}
	return nil
}

func (n *node) Resolve(string) (image.Image, error) {
	return image.Image{ID: "one", Config: image.Config{Cmd: []string{"serve"}, Env: []string{"A=1", "B=2"}}},
		n.do("resolve")
}
func (n *node) EngineFor(engine.Definition) engine.Engine { return n }
func (n *node) Inspect(context.Context, string) (engine.Container, error) {
	return engine.Container{}, engine.ErrNotFound
}
func (n *node) Create(context.Context, engine.Definition, string) error { return n.do("create") }
func (n *node) Start(context.Context, string) error                     { return n.do("start") }
func (n *node) Remove(context.Context, string, bool) error              { return n.do("remove") }
func (n *node) Stop(context.Context, string, time.Duration) error       { return n.do("stop") }
func (n *node) container() engine.Container {
	return engine.Container{State: n.state, Definition: engine.Definition{ID: "x", Name: "web",
		Network: engine.Network{Address: netip.MustParseAddr("10.88.1.2")}}}
}
func (n *node) Idle(context.Context, string) (engine.Container, error) {
	return n.container(), n.do("idle")
}
func (n *node) Own(context.Context, string) (engine.Container, error) {
	return n.container(), n.do("own")
}
func (n *node) Take(string, engine.Definition) error { return n.do("take") }
func (n *node) Release(string)                       { _ = n.do("release") }
func (n *node) Making(string) error                  { return n.do("making") }
func (n *node) Made(string)                          { _ = n.do("made") }
func (n *node) AtHome(netip.Addr) bool               { return n.home }
func (n *node) GiveBack(engine.Definition) error     { return n.do("give back") }

// ways is the network of a node.
type ways struct{ *node }

func (w ways) Lease(string) (network.Address, error) {
	return network.Address{IP: netip.MustParseAddr("10.88.1.2")}, w.do("lease")
}
func (w ways) ReleaseLease(string) error                     { return w.do("release lease") }
func (w ways) Route(netip.Addr, network.Destination) error   { return w.do("route") }
func (w ways) Unroute(netip.Addr) error                      { return w.do("unroute") }
func (w ways) Detach(string) error                           { return w.do("detach") }
func (n *node) Candidates([]string) ([]identity.Node, error) { return nil, n.do("candidates") }
func (n *node) To(engine.Definition, []identity.Node)        { _ = n.do("to") }
func (n *node) Gone(context.Context, string) error           { return n.do("gone") }

func newLife(n *node) *Life {
	return New(Config{
		Images: n, Engines: n, Own: n, Idle: n, Reservations: n, Leases: n, Network: ways{n}, Stages: n,
		CheckVolumes: func(engine.Definition) error { return n.do("volumes") },
		Attach:       func(context.Context, engine.Definition) (string, error) { return "", n.do("attach") },
		Ran:          func(string) { _ = n.do("ran") },
		Changed:      func(engine.Engine) { _ = n.do("changed") },
		Removed:      func(string) { _ = n.do("removed") },
	})
}

// TestRun makes a container, and removes what was made whatever fails.
func TestRun(t *testing.T) {
	n := &node{}
	made, err := newLife(n).Run(t.Context(), &api.RunRequest{Image: "web", Name: "web", Env: []string{"B=3"}})
	if err != nil || !slices.Equal(made.Args, []string{"serve"}) ||
		!slices.Contains(made.Env, "B=3") || slices.Contains(made.Env, "B=2") {
		t.Errorf("%+v, %v", made, err)
	}
	all := slices.Clone(n.did)
	want := []string{"resolve", "candidates", "volumes", "take", "making", "lease", "attach", "create",
		"route", "start", "made", "ran", "to", "release"}
	if !slices.Equal(all, want) {
		t.Errorf("did %q", all)
	}
	for _, fails := range want[:10] {
		n := &node{fails: fails, home: true}
		_, err := newLife(n).Run(t.Context(), &api.RunRequest{Image: "web", Name: "web"})
		if !errors.Is(err, errFailed) {
			t.Errorf("%s fails: %v", fails, err)
		}
		made := slices.Index(want, fails) >= slices.Index(want, "attach")
		if undone := slices.Contains(n.did, "release lease"); undone != made {
			t.Errorf("%s fails: %q", fails, n.did)
		}
		took := slices.Index(want, fails) > slices.Index(want, "take")
		if took != slices.Contains(n.did, "release") {
			t.Errorf("%s fails: the reservation stays: %q", fails, n.did)
		}
	}
}

// TestRemove gives addresses back to the nodes that they are of.
func TestRemove(t *testing.T) {
	for home, want := range map[bool]string{true: "release lease", false: "give back"} {
		n := &node{home: home, state: engine.Exited}
		if err := newLife(n).Remove(t.Context(), "web", false); err != nil || !slices.Contains(n.did, want) ||
			!slices.Contains(n.did, "removed") || !slices.Contains(n.did, "changed") {
			t.Errorf("%v: did %q", err, n.did)
		}
	}
	n := &node{state: engine.Running}
	if err := newLife(n).Remove(t.Context(), "web", false); err == nil || slices.Contains(n.did, "remove") {
		t.Errorf("%v: a container that runs is removed: %q", err, n.did)
	}
	if err := newLife(n).Remove(t.Context(), "web", true); err != nil {
		t.Error(err)
	}
	for _, fails := range []string{"idle", "gone", "remove", "detach"} {
		n := &node{fails: fails}
		if err := newLife(n).Remove(t.Context(), "web", false); !errors.Is(err, errFailed) {
			t.Errorf("%s fails: %v", fails, err)
		}
	}
}

func TestStop(t *testing.T) {
	n := &node{}
	if err := newLife(n).Stop(t.Context(), "web", 0); err != nil || !slices.Contains(n.did, "stop") {
		t.Errorf("%v: did %q", err, n.did)
	}
	n = &node{fails: "own"}
	err := newLife(n).Stop(t.Context(), "web", 0)
	if !errors.Is(err, errFailed) || slices.Contains(n.did, "stop") {
		t.Errorf("%v: did %q", err, n.did)
	}
}

// TestDefine refuses what makes no sense, and completes what is not said.
func TestDefine(t *testing.T) {
	for name, change := range map[string]func(*api.RunRequest){
		"label":        func(r *api.RunRequest) { r.Labels = []string{"web"} },
		"name":         func(r *api.RunRequest) { r.Name = "a b" },
		"restart":      func(r *api.RunRequest) { r.Restart = "sometimes" },
		"stop signal":  func(r *api.RunRequest) { r.StopSignal = "NONE" },
		"stop timeout": func(r *api.RunRequest) { r.StopTimeoutSeconds = -1 },
		"no health":    func(r *api.RunRequest) { r.HealthRetries = 3 },
	} {
		request := &api.RunRequest{Image: "web"}
		change(request)
		if _, err := define(&node{}, request); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	d, err := define(&node{}, &api.RunRequest{Image: "web", Args: []string{"x"}, Labels: []string{"a=b"},
		HealthCommand: "true"})
	if err != nil || d.Name == "" || d.Hostname != d.Name || d.Dir != "/" || d.Labels["a"] != "b" ||
		!slices.Equal(d.Args, []string{"x"}) || d.Health == nil || len(d.ID) != 64 ||
		!strings.HasSuffix(d.Name, d.ID[:6]) {
		t.Errorf("%+v, %v", d, err)
	}
}

// known knows of an address.
type known struct {
	*node
	holder   string
	released []netip.Addr
}

func (k *known) Of(netip.Addr) string               { return k.holder }
func (k *known) MayRelease(string, netip.Addr) bool { return true }
func (k *known) Released(address netip.Addr)        { k.released = append(k.released, address) }

// TestReleaseAddress: only the container of a lease gives the address back, and not while it is here.
func TestReleaseAddress(t *testing.T) {
	address := netip.MustParseAddr("10.88.1.2")
	n := &known{node: &node{}, holder: "x"}
	var here []engine.Container
	var listed, moving error
	addresses := &Addresses{
		Leases: n, Locations: n, Network: ways{n.node},
		Addressed: func(context.Context) ([]engine.Container, error) { return here, listed },
		Refuse:    func(string) error { return moving },
	}
	release := func(container string) error { return addresses.Release(t.Context(), address, container) }
	if err := release("y"); err != nil || len(n.did) > 0 {
		t.Errorf("%v: another container's address was taken back: %q", err, n.did)
	}
	here = []engine.Container{{Definition: engine.Definition{ID: "x"}}}
	if err := release("x"); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("it is here: %v", err)
	}
	here, listed = nil, errFailed
	if err := release("x"); !errors.Is(err, errFailed) {
		t.Errorf("it may be here: %v", err)
	}
	listed, moving = nil, engine.ErrBusy
	if err := release("x"); !errors.Is(err, engine.ErrBusy) || len(n.released) > 0 {
		t.Errorf("it is being moved: %v", err)
	}
	moving = nil
	if err := release("x"); err != nil || len(n.released) != 1 || !slices.Contains(n.did, "release lease") {
		t.Errorf("%v: did %q", err, n.did)
	}
}
