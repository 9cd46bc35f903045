package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
)

// protecting is an engine that protects frozen copies, or fails to.
type protecting struct {
	engine.Engine

	protect func(ctx context.Context) error
}

func (protecting) Name() string { return "protecting" }

func (p protecting) Capabilities() engine.Capabilities { return engine.Capabilities{Protector: p} }

func (p protecting) Protect(ctx context.Context, _ string, _ func([]int) error, _ func()) error {
	return p.protect(ctx)
}

// keptBy is a source whose container is of such an engine.
func keptBy(t *testing.T, protect func(ctx context.Context) error) *source {
	t.Helper()
	a := newTestAgent(t)
	a.engines = engine.NewSet((*embedded.Engine)(nil), protecting{protect: protect})
	return &source{agent: a, definition: engine.Definition{ID: "one", Name: "web", EngineName: "protecting"}}
}

// TestAwaitHeld: the target gets what it needs to run a container only if the copy here is known to have been
// frozen all the time. That nobody can hold the copy does not matter for that.
func TestAwaitHeld(t *testing.T) {
	for name, c := range map[string]struct {
		protect func(ctx context.Context) error
		fails   string // with this; "": it does not
	}{
		"held": {func(context.Context) error { return nil }, ""},
		"thawed": {
			func(context.Context) error { return fmt.Errorf("x: %w", engine.ErrThawed) },
			"thawed the frozen copy",
		},
		"exposed": {
			func(context.Context) error { return fmt.Errorf("x: %w: no keeper", engine.ErrExposed) }, "",
		},
		"unknown": {func(context.Context) error { return errors.New("no such group") }, "no such group"},
		"a panic": {func(context.Context) error { panic("nil") }, "keep web frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			s := keptBy(t, c.protect)
			s.keepCopy()
			err := s.awaitHeld(t.Context())
			if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v; want %q", err, c.fails)
			}
		})
	}
}

// TestFinalPermit: the final marker of a copy that has run leaves never, and nobody is alarmed
// before it leaves.
func TestFinalPermit(t *testing.T) {
	var restarted finalPermit
	if restarted.deny() {
		t.Error("an agent that was started again says that the marker has not left")
	}
	var left finalPermit
	left.withhold()
	if left.given() {
		t.Error("the stream has a marker that was not released")
	}
	if !left.release() || left.deny() || !left.given() {
		t.Error("the marker of a copy that was held: kept here, or nobody is alarmed")
	}
	var ran finalPermit
	ran.withhold()
	if !ran.deny() || ran.release() || !ran.deny() || ran.given() {
		t.Error("the marker of a copy that has run: it left, or somebody is alarmed")
	}
}

// TestRanUnheld: a copy that nothing holds is looked at once more before the target may run it.
func TestRanUnheld(t *testing.T) {
	var looks atomic.Int32
	s := keptBy(t, func(context.Context) error {
		if looks.Add(1) == 1 {
			return fmt.Errorf("%w: no keeper", engine.ErrExposed)
		}
		return engine.ErrThawed
	})
	s.keepCopy()
	if err := s.awaitHeld(t.Context()); err != nil {
		t.Error(err)
	}
	<-s.keeping.over
	if !s.ranUnheld(t.Context()) {
		t.Error("nobody saw that it has been thawed")
	}
	held := keptBy(t, func(context.Context) error { return nil })
	held.keepCopy()
	<-held.keeping.over
	if held.ranUnheld(t.Context()) {
		t.Error("a copy that is held has run")
	}
}

// TestAwaitHeldEnds: a copy that does not freeze keeps neither the step nor its undo waiting.
func TestAwaitHeldEnds(t *testing.T) {
	waits := func(ctx context.Context) error {
		if _, bounded := ctx.Deadline(); !bounded {
			return errors.New("nothing bounds it")
		}
		<-ctx.Done()
		return ctx.Err()
	}
	s := keptBy(t, waits)
	s.keepCopy()
	step, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.awaitHeld(step); !errors.Is(err, context.Canceled) {
		t.Errorf("the step was canceled: %v", err)
	}
	s.keepCopy()
	s.endKeeping()
	if err := s.awaitHeld(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("it was undone: %v", err)
	}
}

// TestCopyThatRan: what has run since it was frozen is not what was frozen.
func TestCopyThatRan(t *testing.T) {
	s := &source{}
	if err := s.hasRun(); err != nil {
		t.Errorf("it has not run: %v", err)
	}
	s.ran.Store(true)
	if err := s.hasRun(); !errors.Is(err, engine.ErrThawed) {
		t.Errorf("it has run: %v", err)
	}
}
