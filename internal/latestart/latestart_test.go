package latestart

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
)

// TestRequest: the target answers once, and only who has asked.
func TestRequest(t *testing.T) {
	r := &Request{}
	if r.Hear() == nil {
		t.Error("without a request")
	}
	if err := r.Await(t.Context()); err != nil {
		t.Errorf("who does not ask waits: %v", err)
	}
	told := ""
	if err := r.Send(func(kind string) error { told = kind; return nil }); err != nil || told != KindNear {
		t.Errorf("the target is told %q, %v", told, err)
	}
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(stopped)
	if err := r.Await(ctx); !errors.Is(err, stopped) {
		t.Errorf("it does not wait: %v", err)
	}
	if err := r.Hear(); err != nil {
		t.Error(err)
	}
	if err := r.Await(t.Context()); err != nil {
		t.Error(err)
	}
	if r.Hear() == nil {
		t.Error("it answers twice")
	}
	lost := errors.New("lost")
	if err := new(Request).Send(func(string) error { return lost }); !errors.Is(err, lost) {
		t.Errorf("a request that did not leave: %v", err)
	}
}

// node is the target: it notes in which order what is done, and fails at one thing.
type node struct {
	done  []string
	fails string
	until time.Time
}

var errNode = errors.New("it fails")

func (n *node) does(what string) error {
	n.done = append(n.done, what)
	if what == n.fails {
		return errNode
	}
	return nil
}

func (n *node) ResaveConntrack(string, netip.Addr) error { return n.does("resave") }

func (n *node) SuppressARP(netip.Addr, string) error { return n.does("suppress") }

func (n *node) AllowARP(netip.Addr) error { return n.does("allow") }

// late is an arrival whose engine starts the container when it is told to.
type late struct {
	engine.Arrival
	node *node
}

func (l late) Start(context.Context) error { return l.node.does("start") }

func (l late) Until() time.Time { return l.node.until }

// start makes the start of a container, on a bridge or not.
func (n *node) start(bridge string) *Start {
	return NewStart(Config{
		Container: engine.Definition{ID: "c", Network: engine.Network{
			Address: netip.MustParseAddr("192.0.2.1"), Bridge: bridge}}, Network: n,
		Unwritten: func(start func() error) error { return start() },
		OnBridge:  func(context.Context, engine.Arrival) error { return n.does("adopt") },
		Started:   func() { _ = n.does("started") },
		Answer:    func(kind, _ string) error { return n.does(kind) },
	})
}

// TestStart: nobody on a bridge hears of the container before it is adopted, and a failure ends the start
// where it is.
func TestStart(t *testing.T) {
	all := []string{"resave", "suppress", "start", "adopt", "allow", "started", KindReady}
	for i, fails := range append(slices.Clone(all), "") {
		n := &node{fails: fails}
		err := n.start("br0").Do(t.Context(), late{node: n}, nil)
		want := all[:min(i+1, len(all))]
		if fails == "started" { // of which nobody is told
			want = all
		}
		if !slices.Equal(n.done, want) || (err == nil) != (fails == "" || fails == "started") {
			t.Errorf("%q fails: done %q, %v", fails, n.done, err)
		}
	}
	n := &node{}
	if err := n.start("").Do(t.Context(), late{node: n}, nil); err != nil ||
		slices.Contains(n.done, "suppress") {
		t.Errorf("without a bridge: %q, %v", n.done, err)
	}
}

// early is an arrival whose engine has started the container.
type early struct{ engine.Arrival }

// TestStartRefuses: no source has a container started that was started already.
func TestStartRefuses(t *testing.T) {
	n := &node{}
	if err := n.start("").Do(t.Context(), early{}, nil); !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
	s := n.start("")
	if err := s.Do(t.Context(), late{node: n}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Do(t.Context(), late{node: n}, nil); !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
}

// TestPatience: when the engine has waited for as long as it can what comes is given up, with the reason; an
// engine that waits for ever ends nothing.
func TestPatience(t *testing.T) {
	ctx, giveUp := context.WithCancelCause(t.Context())
	defer giveUp(nil)
	forEver := &node{}
	if err := forEver.start("").Do(t.Context(), late{node: forEver},
		func(error) { t.Error("an engine that waits for ever has given up") }); err != nil {
		t.Fatal(err)
	}
	n := &node{until: time.Now()}
	if err := n.start("").Do(t.Context(), late{node: n}, giveUp); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, ErrPatience) {
		t.Error(err)
	}
}

// engineThat starts containers late, or not.
type engineThat struct {
	engine.Engine
	late bool
}

func (e engineThat) Capabilities() engine.Capabilities {
	if !e.late {
		return engine.Capabilities{}
	}
	return engine.Capabilities{LateStarter: e}
}

func (engineThat) StartsLate(d engine.Definition) bool { return d.ID == "late" }

// TestIs asks the engine about the container.
func TestIs(t *testing.T) {
	container := engine.Definition{ID: "late"}
	if !Is(engineThat{late: true}, container) || Is(engineThat{}, container) ||
		Is(engineThat{late: true}, engine.Definition{}) {
		t.Error("another engine is to be told")
	}
}
