package rebuild

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

const testMigration = "0123456789abcdef"

var containerID = strings.Repeat("a", 64)

// fakeEngine is an engine with notes of departures and containers.
type fakeEngine struct {
	engine.Engine

	name   string
	leaves []engine.Leave
	noted  error // to read the notes

	mu      sync.Mutex
	has     []engine.Container
	inspect *engine.Container // what it has when it is asked again; nil: the same
	down    error
}

func (e *fakeEngine) Name() string { return e.name }

func (e *fakeEngine) Capabilities() engine.Capabilities { return engine.Capabilities{LeaveNoter: e} }

func (e *fakeEngine) Leaves() ([]engine.Leave, error) { return e.leaves, e.noted }

func (e *fakeEngine) List(context.Context) ([]engine.Container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.has, e.down
}

func (e *fakeEngine) Inspect(context.Context, string) (engine.Container, error) {
	if e.inspect != nil {
		return *e.inspect, nil
	}
	return e.has[0], nil
}

// fakeMoves are the migrations of node a.
type fakeMoves struct {
	mu      sync.Mutex
	moving  bool
	known   map[string]bool
	record  *migration.Record
	full    error // of the disk
	written []migration.Record
	of      engine.Definition // of the last one written
	resumed []string
	cleared []string // marks of migrations that were undone
	clear   error
}

func (m *fakeMoves) Moving(string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moving
}

func (m *fakeMoves) Known(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[id]
}

func (m *fakeMoves) Record(string) *migration.Record { return m.record }

func (m *fakeMoves) Write(record migration.Record, of engine.Definition) error {
	if m.full != nil {
		return m.full
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written, m.of = append(m.written, record), of
	return nil
}

func (m *fakeMoves) Recover(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resumed, m.known[id], m.moving = append(m.resumed, id), true, true
}

// newTest rebuilds the journals of an engine's containers.
func newTest(t *testing.T, one *fakeEngine) (*Rebuilder, *fakeMoves) {
	t.Helper()
	dir, m := t.TempDir(), &fakeMoves{known: map[string]bool{}}
	return New(Config{
		Node: "a", Engines: engine.NewSet(&fakeEngine{name: "own"}, one), Looks: &inventory.Looks{},
		Migrations: m, Log: slog.New(slog.DiscardHandler), NewID: func() string { return "fedcba9876543210" },
		Unread: journal.NewUnreads("a", func(id string) string { return filepath.Join(dir, id) }),
		Resume: func(_ context.Context, _, migration string) error {
			m.cleared = append(m.cleared, migration)
			return m.clear
		},
	}), m
}

// frozen is an engine with a container that a migration has left frozen.
func frozen(leave engine.Leave) *fakeEngine {
	return &fakeEngine{name: "docker", has: []engine.Container{{
		Definition: engine.Definition{ID: containerID, Name: "web", EngineName: "docker",
			Volumes: []engine.Volume{{Name: "data"}, {Name: "shared"}}},
		State: engine.Frozen, Leaving: &leave,
	}}}
}

// TestRebuild: the migration goes on from the engine's note, and once.
func TestRebuild(t *testing.T) {
	leave := engine.Leave{Migration: testMigration, Target: "b", Mode: "pre-copy", Incarnation: "one",
		Started: time.Unix(7, 0).UTC(), Stay: []string{"shared"}}
	one := frozen(leave)
	r, m := newTest(t, one)
	r.Soon(t.Context())
	if len(m.resumed) != 1 || m.resumed[0] != testMigration {
		t.Fatalf("resumed: %v", m.resumed)
	}
	record := m.written[0]
	if record.State != migration.InDoubt || !record.Rebuilt || record.Incarnation != "one" ||
		record.Spec != (migration.Spec{ID: testMigration, Side: migration.Source, Container: containerID,
			Name: "web", Source: "a", Target: "b", Mode: migration.PreCopy, Started: leave.Started}) ||
		!strings.Contains(record.Error, "lost at a") {
		t.Errorf("%+v", record)
	}
	if m.of.Volumes[0].Stays || !m.of.Volumes[1].Stays || one.has[0].Definition.Volumes[1].Stays {
		t.Errorf("volumes %+v; the engine has %+v", m.of.Volumes, one.has[0].Definition.Volumes)
	}
	r.Rebuild(t.Context(), one)
	if len(m.resumed) != 1 {
		t.Errorf("rebuilt again: %v", m.resumed)
	}
}

// TestRebuildUnnoted: a target that nobody has noted cannot be asked, and then no volume is removed.
func TestRebuildUnnoted(t *testing.T) {
	one := frozen(engine.Leave{})
	r, m := newTest(t, one)
	r.Rebuild(t.Context(), one)
	if len(m.written) != 1 || m.written[0].Spec.ID != "fedcba9876543210" ||
		m.written[0].Spec.Target != unknownTarget || m.written[0].Spec.Mode != migration.Cold ||
		m.written[0].Spec.Started.IsZero() || !m.of.Volumes[0].Stays || !m.of.Volumes[1].Stays {
		t.Errorf("%+v of %+v", m.written, m.of)
	}
}

// TestRebuildOnce: an operator's thaw and the look at the start of the agent make one journal, and not two
// of different ids.
func TestRebuildOnce(t *testing.T) {
	one := frozen(engine.Leave{})
	r, m := newTest(t, one)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { r.Rebuild(t.Context(), one) })
	}
	all.Wait()
	if len(m.written) != 1 {
		t.Errorf("%d migrations of one container", len(m.written))
	}
}

// TestNotRebuilt: nothing is made of a container that a migration is, or may be, in charge of.
func TestNotRebuilt(t *testing.T) {
	leave := engine.Leave{Migration: testMigration, Target: "b"}
	unread := func(container string) journal.Unread {
		return journal.Unread{Spec: migration.Spec{ID: "0000000000000000", Container: container},
			Err: errors.New("disk")}
	}
	type situation struct {
		*fakeMoves
		*fakeEngine
		unread *journal.Unreads
	}
	for name, c := range map[string]struct {
		leave  engine.Leave
		change func(s situation)
	}{
		"moving":      {leave, func(s situation) { s.moving = true }},
		"known":       {leave, func(s situation) { s.known[testMigration] = true }},
		"stays":       {leave, func(s situation) { s.has[0].Leaving = nil }},
		"ended since": {leave, func(s situation) { s.inspect = &engine.Container{} }},
		"disk":        {leave, func(s situation) { s.full = errors.New("full") }},
		"hung":        {leave, func(s situation) { s.down = errors.New("hangs") }},
		"away":        {leave, func(s situation) { s.down = engine.ErrAway }},
		"unread":      {engine.Leave{}, func(s situation) { s.unread.Set(unread("")) }},
		"its journal": {engine.Leave{}, func(s situation) { s.unread.Set(unread(containerID)) }},
		"no valid mode": {engine.Leave{Migration: testMigration, Target: "b", Mode: "teleport"},
			func(situation) {}},
	} {
		one := frozen(c.leave)
		r, m := newTest(t, one)
		c.change(situation{m, one, r.config.Unread})
		r.Rebuild(t.Context(), one)
		if len(m.written)+len(m.resumed)+len(m.cleared) > 0 {
			t.Errorf("%s: written %+v", name, m.written)
		}
	}
	one := frozen(engine.Leave{})
	r, m := newTest(t, one)
	r.config.Unread.Set(unread("another"))
	if r.Rebuild(t.Context(), one); len(m.written) != 1 {
		t.Error("another container's journal keeps this one from being made anew")
	}
	unlock := r.rebuilding.Lock("docker")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.Rebuild(ended, one) // does not wait
	unlock()
}

// TestUndone: v0.1.0 undoes a migration without the note that a reboot does not lose. The journal says so,
// and the note goes.
func TestUndone(t *testing.T) {
	own := frozen(engine.Leave{Migration: testMigration, Target: "b"})
	own.name, own.has[0].Definition.EngineName = "own", ""
	undone := migration.Record{Spec: migration.Spec{Side: migration.Source, Container: containerID},
		State: migration.Done, Result: migration.RolledBack}
	type situation struct {
		*migration.Record
		*fakeMoves
		unread *journal.Unreads
	}
	for name, c := range map[string]struct {
		change func(s situation)
		clears bool
	}{
		"undone":        {func(situation) {}, true},
		"moved":         {func(s situation) { s.Result = migration.Moved }, false},
		"under way":     {func(s situation) { s.State = migration.Undoing }, false},
		"from here":     {func(s situation) { s.Spec.Side = migration.Target }, false},
		"another's":     {func(s situation) { s.Spec.Container = "x" }, false},
		"another moves": {func(s situation) { s.moving = true }, false},
		"unread": {func(s situation) {
			s.unread.Set(journal.Unread{Spec: migration.Spec{ID: "0000000000000000"},
				Err: errors.New("disk")})
		}, false},
		"kept mark": {func(s situation) { s.clear = errors.New("disk") }, true},
	} {
		r, m := newTest(t, &fakeEngine{name: "docker"})
		record := undone
		m.known[testMigration], m.record = true, &record
		c.change(situation{&record, m, r.config.Unread})
		r.Rebuild(t.Context(), own)
		if (len(m.cleared) == 1) != c.clears || len(m.written) > 0 {
			t.Errorf("%s: cleared %v, written %+v", name, m.cleared, m.written)
		}
	}
}

// TestRemovedCopyIsAnEnd: a copy that somebody has removed keeps no target waiting, although the note of
// its departure is still there.
func TestRemovedCopyIsAnEnd(t *testing.T) {
	one := &fakeEngine{name: "docker", leaves: []engine.Leave{{Migration: testMigration}}}
	r, m := newTest(t, one)
	m.moving = true // nothing is rebuilt
	wants := func(busy bool, when string) {
		t.Helper()
		if err := r.LeavesYet(testMigration); errors.Is(err, engine.ErrBusy) != busy {
			t.Errorf("%s: %v", when, err)
		}
	}
	wants(true, "the engine was not asked")
	has := frozen(engine.Leave{Migration: testMigration}).has
	for i, look := range []struct {
		listed []engine.Container
		busy   bool
		when   string
	}{
		{has, true, "the engine has the copy"},
		{nil, false, "it has none"},
		{[]engine.Container{{State: engine.Damaged}}, true, "it has a container that may be the copy"},
		{[]engine.Container{{State: engine.Running}}, false, "it has another container"},
		{has, true, "the engine has the copy again"},
	} {
		one.has = look.listed
		r.Rebuild(t.Context(), one)
		wants(look.busy, fmt.Sprintf("look %d: %s", i, look.when))
	}
	one.leaves = nil
	wants(false, "nothing is noted")
	one.noted = errors.New("disk")
	wants(true, "the notes cannot be read")
}
