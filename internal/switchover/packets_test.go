package switchover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network/hold"
)

// node notes in order what is done to its network, and fails as a test wants it.
type node struct {
	did   []string
	fails map[string]error // by what is done
	held  []migration.Held
	final bool
}

func (n *node) do(what string, of ...any) error {
	line := what
	if len(of) > 0 {
		line += " " + fmt.Sprint(of...)
	}
	n.did = append(n.did, line)
	return n.fails[what]
}

func (n *node) Prepare(netip.Addr) (Hold, error) {
	if err := n.do("prepare"); err != nil {
		return nil, err
	}
	return queue{n}, nil
}

func (n *node) Route(_ netip.Addr, to hold.Destination) error { return n.do("route", to) }
func (n *node) Detach(string) error                           { return n.do("detach") }
func (n *node) Quiesce(netip.Addr) error                      { return n.do("quiesce") }
func (n *node) EndQuiesce(netip.Addr) error                   { return n.do("end quiesce") }

func (n *node) RouteHere(context.Context, engine.Definition) error { return n.do("route here") }

func (n *node) Attach(context.Context, engine.Definition) (string, error) {
	return "netns", n.do("attach")
}

// queue is a hold on that node.
type queue struct{ *node }

func (q queue) StartNew(to hold.Destination) error      { return q.do("hold new", to) }
func (q queue) StartRequests(to hold.Destination) error { return q.do("hold requests", to) }
func (q queue) Start() error                            { return q.do("hold all") }
func (q queue) Close() error                            { return q.do("close") }

func (queue) Stats() hold.Stats { return hold.Stats{HeldPackets: 3, DroppedPackets: 1} }

func (q queue) Release(_ context.Context, to hold.Destination, _ int64) error {
	return q.do("release", to)
}

const here, there = "container one here", "node b"

var errEnded = errors.New("its engine has removed it")

// packetsOf are those of a container on such a node.
func packetsOf() (*Packets, *node) {
	n := &node{fails: map[string]error{}}
	return New(Config{
		Network: n, Attachments: n, Container: engine.Definition{ID: "one"}, Target: "b",
		Held:  func(held migration.Held) { n.held = append(n.held, held) },
		Final: func() bool { return n.final }, Ended: errEnded,
	}), n
}

func (n *node) wants(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(n.did, want) {
		t.Errorf("%q; want %q", n.did, want)
	}
	n.did = nil
}

func settled(context.Context) error { return nil }

// TestHold: packets that open connections are held first, all of them only when the connections have
// settled, and are let go once.
func TestHold(t *testing.T) {
	p, n := packetsOf()
	settle := func(context.Context) error { return n.do("settle") }
	if err := errors.Join(p.Prepare(), p.Hold(t.Context(), settle), p.CloseUnused()); err != nil {
		t.Fatal(err)
	}
	n.wants(t, "prepare", "hold new "+here, "settle", "hold all")
	if err := p.ReleaseThere(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.wants(t, "release "+there)
	if len(n.held) != 1 || n.held[0].Packets != 3 || n.held[0].Dropped != 1 {
		t.Errorf("%+v", n.held)
	}
	if err := errors.Join(p.ReleaseThere(t.Context()), p.ReleaseHere(t.Context())); err != nil {
		t.Fatal(err)
	}
	n.wants(t, "route "+there, "route here") // as an agent does that was started again
}

// TestHoldFails: nothing is held after a failure that was not held before it. The hold stays for its undo.
func TestHoldFails(t *testing.T) {
	errFails := errors.New("it fails")
	for fails, want := range map[string][]string{
		"hold new": {"prepare", "hold new " + here, "release " + here},
		"settle":   {"prepare", "hold new " + here, "settle", "release " + here},
		"hold all": {"prepare", "hold new " + here, "settle", "hold all", "release " + here},
	} {
		p, n := packetsOf()
		n.fails[fails] = errFails
		settle := func(context.Context) error { return n.do("settle") }
		if err := errors.Join(p.Prepare(), p.Hold(t.Context(), settle)); !errors.Is(err, errFails) {
			t.Errorf("%s: %v", fails, err)
		}
		if err := p.ReleaseHere(t.Context()); err != nil {
			t.Errorf("%s: %v", fails, err)
		}
		n.wants(t, want...)
	}
}

// TestReleaseFails: a release that fails is repeated, with the same hold.
func TestReleaseFails(t *testing.T) {
	p, n := packetsOf()
	n.fails["release"] = errors.New("no route")
	if err := errors.Join(p.Prepare(), p.Hold(t.Context(), settled)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.ReleaseHere(t.Context()); !errors.Is(err, n.fails["release"]) {
			t.Error(err)
		}
	}
	n.fails["release"] = nil
	n.did = nil
	if err := p.ReleaseHere(t.Context()); err != nil || len(n.held) != 1 {
		t.Errorf("%v, held %+v", err, n.held)
	}
	n.wants(t, "release "+here)
}

// TestReleaseEnded: nobody takes the packets of a container that was stopped meanwhile.
func TestReleaseEnded(t *testing.T) {
	p, n := packetsOf()
	n.fails["release"] = fmt.Errorf("x: %w", errEnded)
	if err := errors.Join(p.Prepare(), p.Hold(t.Context(), settled)); err != nil {
		t.Fatal(err)
	}
	n.did = nil
	if err := p.ReleaseHere(t.Context()); err != nil {
		t.Error(err)
	}
	n.wants(t, "release "+here, "close", "detach")
	there, n := packetsOf()
	n.fails["release"] = errEnded
	if err := errors.Join(there.Prepare(), there.Hold(t.Context(), settled)); err != nil {
		t.Fatal(err)
	}
	if err := there.ReleaseThere(t.Context()); !errors.Is(err, errEnded) {
		t.Errorf("packets for the target: %v", err)
	}
}

// TestCloseUnused: a hold that was prepared is closed, once, and one that cannot be prepared leaves nothing.
func TestCloseUnused(t *testing.T) {
	p, n := packetsOf()
	if err := errors.Join(p.CloseUnused(), p.Prepare(), p.CloseUnused(), p.CloseUnused()); err != nil {
		t.Fatal(err)
	}
	n.wants(t, "prepare", "close")
	n.fails["prepare"] = errors.New("no device")
	if err := p.Prepare(); !errors.Is(err, n.fails["prepare"]) {
		t.Error(err)
	}
	if err := errors.Join(p.CloseUnused(), p.ReleaseHere(t.Context())); err != nil {
		t.Fatal(err)
	}
	n.wants(t, "prepare", "route here")
}

// TestQuiesce: whoever dumps waits until no packet arrives, and the undo waits before it lets packets pass.
func TestQuiesce(t *testing.T) {
	p, n := packetsOf()
	if err := p.EndQuiesce(); err != nil { // an earlier agent may have begun it
		t.Fatal(err)
	}
	n.wants(t, "end quiesce")
	n.fails["quiesce"] = errors.New("the filter is in the way")
	p.Quiesce()
	for range 2 {
		if err := p.AwaitQuiesced(); !errors.Is(err, n.fails["quiesce"]) {
			t.Error(err)
		}
	}
	if err := p.EndQuiesce(); err != nil {
		t.Error(err)
	}
	n.wants(t, "quiesce", "end quiesce")
}

// TestRedirect: the target has a say in the packets of a container that was stopped, after the final marker,
// and until the container is to run here again or its packets have gone to the target.
func TestRedirect(t *testing.T) {
	p, n := packetsOf()
	if err := errors.Join(p.Prepare(), p.HoldRequests(), p.Redirect()); err != nil || p.StoppedNow() {
		t.Fatal(err)
	}
	n.wants(t, "prepare", "hold requests "+here)
	p.Stopped()
	if err := p.Redirect(); err != nil || !p.StoppedNow() {
		t.Errorf("before the final marker: %v", err)
	}
	n.wants(t)
	n.final = true
	if err := p.Redirect(); err != nil {
		t.Error(err)
	}
	n.wants(t, "hold requests "+there)
	p.Reviving()
	if err := p.Redirect(); err != nil || p.StoppedNow() {
		t.Errorf("when it is to run here again: %v", err)
	}
	n.wants(t)
	p.Stopped()
	if err := errors.Join(p.ReleaseThere(t.Context()), p.Redirect()); err != nil || p.StoppedNow() {
		t.Errorf("when its packets go to the target: %v", err)
	}
	n.wants(t, "release "+there)
}

// TestRenew: a container that is started again has a network of its own before anybody can connect to it,
// also if an earlier agent has stopped the old one.
func TestRenew(t *testing.T) {
	p, n := packetsOf()
	if err := errors.Join(p.Prepare(), p.HoldRequests()); err != nil {
		t.Fatal(err)
	}
	n.did = nil
	want := []string{"hold all", "detach", "attach", "hold requests " + here}
	if err := p.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.wants(t, want...)
	again, n := packetsOf()
	if err := errors.Join(again.Renew(t.Context()), again.CloseUnused()); err != nil {
		t.Fatal(err)
	}
	n.wants(t, append([]string{"prepare"}, want...)...)
	for i, fails := range []string{"prepare", "hold all", "detach", "attach"} {
		broken, n := packetsOf()
		n.fails[fails] = errors.New(fails)
		if err := broken.Renew(t.Context()); !errors.Is(err, n.fails[fails]) || len(n.did) != i+1 {
			t.Errorf("%s: %v after %q", fails, err, n.did)
		}
	}
}
