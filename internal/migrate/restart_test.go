package migrate

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestJournalComesBack: a migration whose journal can neither be written nor read goes on when it
// can be again.
func TestJournalComesBack(t *testing.T) {
	a := newNode(t)
	record, err := migration.Banned(testMigration, "a", "b", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	machine, _, err := migration.Resume(record)
	if err != nil {
		t.Fatal(err)
	}
	m := a.moves.newMove(a.moves.newJournal(testMigration, engine.Definition{}), machine)
	m.Take(a.Work(m, engine.Definition{}, nil))
	m.remember()
	if err := putJournal(m.Journal, "not a journal"); err != nil {
		t.Fatal(err)
	}
	m.halted = true
	if err := (restarting{m}).resume(errors.New("disk")); err == nil || !m.halted {
		t.Fatalf("error %v, halted %t: it went on without a journal", err, m.halted)
	}
	if err := m.Journal.Write(record); err != nil {
		t.Fatal(err)
	}
	if err := (restarting{m}).resume(errors.New("disk")); err != nil || m.halted {
		t.Fatalf("error %v, halted %t: it did not go on", err, m.halted)
	}
	if err := os.RemoveAll(m.Journal.Dir); err != nil {
		t.Fatal(err)
	}
}
