package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/inventory"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
)

const testMigration = "0123456789abcdef"

// node is node b, whose migrations do nothing.
type node struct {
	moves    *migrate.Moves
	recovery *migrate.Recovery
	work     migrate.Work
}

func newNode(t *testing.T) *node {
	t.Helper()
	n, dir := &node{work: idle{}}, t.TempDir()
	n.moves = migrate.New(t.Context(), migrate.Config{
		Node: "b", Incarnation: "here", Dir: dir, Spare: durable.NewSpare(dir),
		Engines: engine.NewSet(silent{}), Own: silent{}, Looks: &inventory.Looks{}, Timeout: time.Minute,
		On: n, RemoveLeft: func(string) error { return nil }, Log: slog.New(slog.DiscardHandler),
	})
	n.recovery = migrate.NewRecovery(n.moves)
	return n
}

// Work implements migrate.Node.
func (n *node) Work(*migrate.Move, engine.Definition, *api.Offer) migrate.Work { return n.work }

// Changed implements migrate.Node.
func (*node) Changed(engine.Definition) {}

// Ended implements migrate.Node.
func (*node) Ended() {}

// Learn implements migrate.Node.
func (*node) Learn(migration.Report, migration.Side, string) {}

// silent is the node's own engine, which has no containers.
type silent struct{ engine.Engine }

func (silent) Name() string                                     { return "embedded" }
func (silent) Capabilities() engine.Capabilities                { return engine.Capabilities{} }
func (silent) KeepNotes() error                                 { return nil }
func (silent) ResumeOf(context.Context, string, string) error   { return nil }
func (silent) Wait(context.Context, string) (int, error)        { return 0, nil }
func (silent) List(context.Context) ([]engine.Container, error) { return nil, nil }

// idle is work that does nothing.
type idle struct{ migrate.Work }

func (idle) Send(migration.Message)                                    {}
func (idle) Do(context.Context, migration.StepName) (time.Time, error) { return time.Time{}, nil }
func (idle) Undo(context.Context, migration.StepName) error            { return nil }
func (idle) Ended(migration.Finish)                                    {}
func (i idle) Fresh() migrate.Work                                     { return i }

// ended makes a migration that has ended, as the journal has it.
func (n *node) ended(t *testing.T, number int, change func(*migration.Record)) string {
	t.Helper()
	id := fmt.Sprintf("%016x", number)
	record, err := migration.Banned(id, "a", "b", time.Unix(int64(number), 0))
	if err != nil {
		t.Fatal(err)
	}
	change(&record)
	file := &journal.Journal{Dir: n.moves.Dir(id)}
	if err := file.Write(record); err != nil {
		t.Fatal(err)
	}
	n.recovery.One(id)
	if _, err := n.moves.Find(id); err != nil {
		t.Fatal(err)
	}
	return id
}

// begun makes a migration that is under way: to this node, or from it.
func (n *node) begun(t *testing.T, side migration.Side, work migrate.Work) *migrate.Move {
	t.Helper()
	spec := migration.Spec{
		ID: testMigration, Side: side, Mode: migration.Cold, Name: "web", Container: strings.Repeat("0", 64),
		Source: "a", Target: "b", Started: time.Now(),
	}
	if side == migration.Source {
		spec.Source, spec.Target = "b", "a"
	}
	machine, err := migration.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	m := n.moves.New(engine.Definition{}, machine)
	m.Take(work)
	if err := n.moves.Add(m); err != nil {
		t.Fatal(err)
	}
	return m
}
