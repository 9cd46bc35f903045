package migrate

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

var testContainer = strings.Repeat("ab", 32)

// TestWhereTo: who looks for a container where it was is told where it went, and not after it came back.
func TestWhereTo(t *testing.T) {
	a := newNode(t)
	began := time.Now()
	ended := func(id string, side migration.Side, result migration.Result) {
		began = began.Add(time.Second)
		endedMove(t, a, id, side, result, began)
	}
	is := func(want string) {
		t.Helper()
		for _, reference := range []string{"cache", testContainer, testContainer[:12]} {
			if got := a.moves.MovedTo(reference); got != want {
				t.Errorf("%.12s was moved to %q, want %q", reference, got, want)
			}
		}
	}
	is("")
	ended("0000000000000001", migration.Source, migration.RolledBack)
	is("")
	ended("0000000000000002", migration.Source, migration.Moved)
	is("a")
	err := NewContainers(a.moves).whereTo(fmt.Errorf("container cache: %w", engine.ErrNotFound), "cache")
	if !errors.Is(err, engine.ErrNotFound) || !strings.HasSuffix(err.Error(), "it was moved to a") {
		t.Errorf("error %v", err)
	}
	if a.moves.MovedTo("") != "" || a.moves.MovedTo("other") != "" {
		t.Error("another container was moved, too")
	}
	ended("0000000000000003", migration.Target, migration.Moved)
	is("")
}

// TestBroughtBy: the last migration that has brought a container here counts, until it leaves.
func TestBroughtBy(t *testing.T) {
	a := newNode(t)
	began := time.Now()
	first := endedMove(t, a, "0000000000000001", migration.Target, migration.Moved, began)
	if a.moves.BroughtBy(testContainer) != first {
		t.Fatal("nothing is known of the migration")
	}
	second := endedMove(t, a, "0000000000000002", migration.Target, migration.Moved, began.Add(time.Second))
	if arrival := a.moves.BroughtBy(testContainer); arrival != second {
		t.Errorf("the first migration counts: %+v", arrival)
	}
	endedMove(t, a, "0000000000000003", migration.Source, migration.Moved, began.Add(2*time.Second))
	if a.moves.BroughtBy(testContainer) != nil {
		t.Error("it has left")
	}
}

// endedMove is a migration of testContainer that has ended: to node a, or from there.
func endedMove(t *testing.T, a *node, id string, side migration.Side, result migration.Result,
	began time.Time) *Move {
	t.Helper()
	spec := migration.Spec{
		ID: id, Side: side, Container: testContainer, Name: "cache", Source: "b", Target: "a",
		Mode: migration.Cold, Started: began,
	}
	if side == migration.Target {
		spec.Source, spec.Target = "a", "b"
	}
	record, err := migration.Banned(id, spec.Source, spec.Target, spec.Started)
	if err != nil {
		t.Fatal(err)
	}
	record.Spec, record.Result = spec, result
	machine, _, err := migration.Resume(record)
	if err != nil {
		t.Fatal(err)
	}
	m := a.moves.newMove(a.moves.newJournal(id, engine.Definition{}), machine)
	m.remember()
	m.since = spec.Started
	a.moves.byID[id] = m
	if err := os.MkdirAll(a.moves.Dir(id), 0o700); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestUnknownMigration(t *testing.T) {
	_, err := newNode(t).moves.Find("nope")
	if !errors.Is(err, engine.ErrNotFound) || strings.Contains(err.Error(), "container") {
		t.Errorf("error %v", err)
	}
}
