package anew

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network/hold"
	"github.com/godwit/godwit/internal/transfer/progress"
)

// node notes in order what is done to its container and network, and fails as a test wants it.
type node struct {
	engine.Engine

	problems []engine.Problem
	ports    []engine.Port
	halted   bool // what Halted finds

	mu    sync.Mutex
	did   []string
	fails map[string]error // by what is done
}

func newNode() *node { return &node{fails: map[string]error{}} }

var errTest = errors.New("it fails on purpose")

func (n *node) do(what string, of ...any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	line := what
	if len(of) > 0 {
		line += " " + fmt.Sprint(of...)
	}
	n.did = append(n.did, line)
	return n.fails[what]
}

// wants compares what was done with what should have been.
func (n *node) wants(t *testing.T, want ...string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(n.did, want) {
		t.Errorf("%q; want %q", n.did, want)
	}
	n.did = nil
}

func (n *node) EngineFor(engine.Definition) engine.Engine { return n }

func (n *node) ExamineAnew(context.Context, string) ([]engine.Problem, error) {
	return n.problems, n.do("examine")
}

func (n *node) Ports(context.Context, string) ([]engine.Port, error) { return n.ports, n.do("ports") }

func (n *node) Halt(_ context.Context, id string, leave engine.Leave) (time.Time, error) {
	if err := n.do("halt", id+" for "+leave.Target); err != nil {
		return time.Time{}, err
	}
	return time.Unix(1, 0), n.fails["halted"]
}

func (n *node) Halted(context.Context, string) (bool, error) { return n.halted, n.do("ask") }

func (n *node) Revive(context.Context, string) (string, error) { return "healthy", n.do("revive") }

func (n *node) PrepareStart(_ context.Context, _ engine.Definition, netns string,
	ports []engine.Port) (engine.Arrival, error) {
	if err := n.do("prepare start", fmt.Sprintf("in %q with %d ports", netns, len(ports))); err != nil {
		return nil, err
	}
	return candidate{n: n}, nil
}

func (n *node) Stopped()                      { _ = n.do("stopped") }
func (n *node) Reviving()                     { _ = n.do("reviving") }
func (n *node) Renew(context.Context) error   { return n.do("renew") }
func (n *node) forget(context.Context)        { _ = n.do("forget") }
func (n *node) leave() engine.Leave           { return engine.Leave{Target: "b"} }
func (n *node) may(ctx context.Context) error { return errors.Join(n.do("may"), ctx.Err()) }

func (n *node) Prepare(netip.Addr) (Hold, error) {
	if err := n.do("prepare"); err != nil {
		return nil, err
	}
	return queue{n}, nil
}

func (n *node) RouteHere(context.Context, engine.Definition) error { return n.do("route here") }

func (n *node) Forget(ctx context.Context, _ engine.Definition) { n.forget(ctx) }

func (n *node) GiveBack(ctx context.Context, _ engine.Definition) error {
	return errors.Join(n.do("give back"), ctx.Err())
}

// queue is a hold on that node.
type queue struct{ n *node }

func (q queue) StartRequests(to hold.Destination) error { return q.n.do("hold requests", to) }
func (q queue) Close() error                            { return q.n.do("close") }

func (q queue) Release(_ context.Context, to hold.Destination, _ int64) error {
	return q.n.do("release", to)
}

// candidate is a container on probation on that node.
type candidate struct {
	engine.Arrival
	n *node
}

func (c candidate) Restore(_ context.Context, permission engine.Permission) (time.Time, error) {
	if err := errors.Join(c.n.do("start"), permission.Ask()); err != nil {
		return time.Time{}, err
	}
	return time.Unix(2, 0), nil
}

// container is the one that moves.
func container() engine.Definition { return engine.Definition{ID: "one", Name: "web"} }

// sourceOf is the source of a container of a node.
func sourceOf(n *node) (*Source, *progress.Tracker) {
	tracker := progress.NewTracker(migration.Spec{Side: migration.Source, Mode: migration.Restart})
	return NewSource(SourceConfig{
		Container: container(), Engines: n, Packets: n, Leave: n.leave, Forget: n.forget, Here: "a",
		Figures: tracker,
	}), tracker
}
