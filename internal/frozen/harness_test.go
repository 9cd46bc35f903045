package frozen

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// testEngine has a frozen copy, and fails as a test wants it.
type testEngine struct {
	engine.Engine

	protect  func(ctx context.Context, hold func([]int) error, held func()) error
	pids     []int
	silent   error            // it does not answer
	inspects engine.Container // unless it is silent
	missing  bool             // it knows no such container
}

func (*testEngine) Name() string { return "protecting" }

func (*testEngine) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (e *testEngine) Processes(context.Context, string) ([]int, error) {
	if e.missing {
		return nil, engine.ErrNotFound
	}
	return e.pids, e.silent
}

func (e *testEngine) Inspect(context.Context, string) (engine.Container, error) {
	if e.missing {
		return engine.Container{}, engine.ErrNotFound
	}
	return e.inspects, e.silent
}

func (*testEngine) Resume(context.Context, string) error { return errResumed }

var errResumed = errors.New("resumed by the engine")

// protecting is an engine that also protects.
type protecting struct{ *testEngine }

func (p protecting) Capabilities() engine.Capabilities { return engine.Capabilities{Protector: p} }

func (p protecting) Protect(ctx context.Context, _ string, hold func([]int) error, held func()) error {
	return p.protect(ctx, hold, held)
}

// single is a set of one engine.
type single struct{ engine.Engine }

func (s single) EngineFor(engine.Definition) engine.Engine { return s.Engine }

// testMove is a migration with a record that the test sets.
type testMove struct {
	record   migration.Record
	rebooted bool
}

func (m *testMove) Record() migration.Record { return m.record }
func (m *testMove) Rebooted() bool           { return m.rebooted }

// testKeeper notes what becomes of it.
type testKeeper struct {
	fails  error
	holds  []int
	closed int
}

func (k *testKeeper) Hold(pids []int) (int, error) {
	if k.fails != nil {
		return 0, k.fails
	}
	k.holds = append(k.holds, pids...)
	return len(pids), nil
}

func (k *testKeeper) Close() error {
	k.closed++
	return nil
}

// lines are what a copy has logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte(what))
}

// tested is a copy, with all that it works on.
type tested struct {
	*Copy
	move    *testMove
	log     *lines
	keepers []*testKeeper // in the order of their starts
	next    []error       // with which keepers fail to hold, in that order
	none    error         // no keeper starts
}

// copyOf is the copy of a container of an engine.
func copyOf(t *testing.T, of engine.Engine) *tested {
	t.Helper()
	one := &tested{move: &testMove{}, log: &lines{}}
	one.Copy = New(t.Context(), Config{
		Engines: single{of}, Migration: one.move, Container: engine.Definition{ID: "one", Name: "web"},
		ID: "0123456789abcdef", Here: "a", Target: "b", Log: slog.New(slog.NewTextHandler(one.log, nil)),
	})
	one.start = func() (keeper, error) {
		if one.none != nil {
			return nil, one.none
		}
		started := &testKeeper{}
		if n := len(one.keepers); n < len(one.next) {
			started.fails = one.next[n]
		}
		one.keepers = append(one.keepers, started)
		return started, nil
	}
	return one
}

// keptBy is a copy whose engine protects it, or fails to.
func keptBy(t *testing.T, protect func(ctx context.Context) error) *tested {
	t.Helper()
	return copyOf(t, protecting{&testEngine{
		protect: func(ctx context.Context, _ func([]int) error, _ func()) error { return protect(ctx) },
	}})
}
