package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/restart"
	"github.com/godwit/godwit/internal/wire/identity"
)

// noLayers is an image store of an engine that starts nothing.
type noLayers struct{}

func (noLayers) LayerPath(string) (string, error) { return "", errors.New("no layers") }

// restartsNode is a node whose engine has containers on disk only, and that knows no other node.
type restartsNode struct {
	*node
	embedded *embedded.Engine
	restarts *restart.Restarts
	state    string // directory
	t        *testing.T
}

func newRestartsNode(t *testing.T) *restartsNode {
	t.Helper()
	state := t.TempDir()
	own, err := embedded.New(embedded.Config{
		StateDir: state, RunDir: t.TempDir(), Images: noLayers{}, State: "one", Runc: "/bin/false",
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &restartsNode{node: newNode(t, own), embedded: own, state: state, t: t}
	log := slog.New(slog.DiscardHandler)
	n.restarts = restart.New(t.Context(), restart.Config{
		Engine: own, Migrations: NewStarts(n.moves),
		Members: location.Members{Others: func() []identity.Node { return nil }, Log: log},
		Prepare: func(context.Context, engine.Definition) error { return nil }, Changed: func() {}, Log: log,
	})
	return n
}

// ended makes a container that has ended, with some failures behind it. What the wall clock said then
// has no meaning.
func (n *restartsNode) ended(number, failures int) engine.Container {
	n.t.Helper()
	id := fmt.Sprintf("%064x", number)
	dir := filepath.Join(n.state, "containers", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	for name, content := range map[string]any{
		"definition.json": engine.Definition{ID: id, Name: fmt.Sprintf("c%d", number), Restart: "always"},
		"record.json": map[string]any{
			"state": engine.Exited, "started": time.Now().AddDate(50, 0, 0),
			"finished": time.Now().AddDate(-50, 0, 0), "exit_code": 1,
		},
		"restarts.json": map[string]any{"holder": "one", "failures": failures},
	} {
		data, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	one, err := n.embedded.Inspect(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return one
}

// moving lets a migration of a container be under way.
func (n *restartsNode) moving(container string) *Move {
	n.t.Helper()
	record, err := migration.Banned(testMigration, "a", "b", time.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	record.State, record.Decision, record.Spec.Mode = migration.Committed, "", migration.Cold
	record.Begun = []migration.StepName{migration.StepRestore}
	machine, _, err := migration.Resume(record)
	if err != nil {
		n.t.Fatal(err)
	}
	m := n.moves.newMove(n.moves.newJournal(testMigration, engine.Definition{}), machine)
	m.Tracker.Spec.Container = container
	n.moves.byID[testMigration] = m
	return m
}

// unread lets there be a journal that cannot be used, of a container; "": it is not known of which.
func (n *restartsNode) unread(container string) {
	n.moves.unread.Set(journal.Unread{Spec: migration.Spec{ID: "x", Container: container},
		Err: errors.New("damaged")})
}

// why is why a container does not run.
func (n *restartsNode) why(one engine.Container) string {
	explained := []engine.Container{one}
	n.restarts.Explain(explained)
	return explained[0].NotRunning
}

// TestStartWhileMoving: nothing is started as long as a migration of it is known, or may be.
func TestStartWhileMoving(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	one := n.ended(1, 0)
	id, asked := one.Definition.ID, NewStarts(n.moves)
	if moving, never := asked.Of(id); moving != "" || never || asked.Busy(id) != nil {
		t.Errorf("migration %q, %t, %v", moving, never, asked.Busy(id))
	}
	m := n.moving(id)
	if moving, never := asked.Of(id); moving != testMigration || never ||
		!errors.Is(asked.Busy(id), engine.ErrBusy) {
		t.Errorf("migration %q, %t, %v", moving, never, asked.Busy(id))
	}
	if why := n.why(one); !strings.Contains(why, "is being migrated") {
		t.Error(why)
	}
	if err := n.restarts.Start(t.Context(), one, true); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("started with its migration under way: %v", err)
	}
	m.remember()
	n.unread(id)
	if why := n.why(one); !strings.Contains(why, "journal of migration x cannot be used") {
		t.Error(why)
	}
	n.unread("")
	if why := n.why(one); !strings.Contains(why, "in a moment") {
		t.Error(why)
	}
}

// TestHoldingUndone: an arrival that never runs keeps the container from starting nowhere, also if
// its removal does not come to an end. What has been taken back from here, or runs, does.
func TestHoldingUndone(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	id := n.ended(1, 0).Definition.ID
	arrival := filepath.Join(n.state, "containers", id, "arrival.json")
	if err := os.WriteFile(arrival, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := n.moving(id)
	record := m.Record()
	record.Spec.Side, record.Spec.Mode, record.Spec.Container = migration.Target, migration.Cold, id
	holds := func(when, want string) {
		t.Helper()
		machine, _, err := migration.Resume(record)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		m.machine = machine
		state, err := n.restarts.Holding(t.Context(), id)
		if err != nil || !strings.Contains(state, want) || (state == "") != (want == "") {
			t.Errorf("%s: %q, %v; want %q", when, state, err, want)
		}
	}
	record.State, record.Decision, record.Begun = migration.Committed, "",
		[]migration.StepName{migration.StepArrive, migration.StepRestore}
	holds("it may run", "under way")
	record.State, record.Decision, record.Begun = migration.Undoing, migration.NeverRan,
		[]migration.StepName{migration.StepArrive}
	holds("it never runs", "")
	record.Overruled, record.Begun = true, []migration.StepName{migration.StepArrive, migration.StepRestore}
	holds("what runs is being taken back", "under way")
	record.Overruled = false
	if err := os.Remove(arrival); err != nil {
		t.Fatal(err)
	}
	holds("it is no arrival", "it is exited")
}

// TestUndoneElsewhere: v0.1.0 undoes a migration without the note that a reboot does not lose. The
// journal says so, and the note goes.
func TestUndoneElsewhere(t *testing.T) {
	t.Parallel()
	n := newRestartsNode(t)
	one := n.ended(1, 0)
	id := one.Definition.ID
	m := n.moving(id)
	note, err := json.Marshal(map[string]any{"leave": engine.Leave{Migration: testMigration, Target: "c",
		Mode: "cold"}})
	if err == nil {
		err = os.WriteFile(filepath.Join(n.state, "containers", id, "departure.json"), note, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	leaves := func(want bool, when string) {
		t.Helper()
		n.recovery.Rebuild(t.Context(), n.embedded)
		now, err := n.embedded.Inspect(t.Context(), id)
		if err != nil || (now.Leaving != nil) != want {
			t.Fatalf("%s: %+v, %v", when, now.Leaving, err)
		}
	}
	leaves(true, "under way")
	m.remember()
	leaves(true, "ended at a target")
	record := m.Record()
	record.Spec.Side, record.Spec.Container, record.State, record.Begun = migration.Source,
		id, migration.Done, nil
	for _, result := range []migration.Result{migration.Moved, migration.RolledBack} {
		if record.Result = result; result == migration.RolledBack {
			n.unread("")
		}
		if m.machine, _, err = migration.Resume(record); err != nil {
			t.Fatal(err)
		}
		leaves(true, string(result))
	}
	n.unread(id)
	leaves(true, "rolled back, and a journal of it cannot be used")
	if one, err = n.embedded.Inspect(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if why := n.why(one); !strings.Contains(why, "journal of migration x cannot be used") {
		t.Error(why)
	}
	n.unread("")
	if why := n.why(one); !strings.Contains(why, "a migration has moved it away") ||
		!strings.Contains(why, "migrations/x away") {
		t.Error(why)
	}
	if err := n.restarts.Start(t.Context(), one, true); !errors.Is(err, engine.ErrBusy) ||
		!strings.Contains(err.Error(), "migrations/x away") {
		t.Errorf("it is started: %v", err)
	}
	n.unread(strings.Repeat("f", 64))
	leaves(false, "rolled back")
}
