package agent

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
	a := newTestAgent(t)
	record, err := migration.Banned(testMigration, "a", "b", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	machine, _, err := migration.Resume(record)
	if err != nil {
		t.Fatal(err)
	}
	m := newMove(a, a.moves.journal(testMigration, engine.Definition{}), machine)
	a.equip(m, engine.Definition{}, nil)
	m.remember()
	if err := putJournal(m.journal, "not a journal"); err != nil {
		t.Fatal(err)
	}
	m.halted = true
	if err := m.resume(errors.New("disk")); err == nil || !m.halted {
		t.Fatalf("error %v, halted %t: it went on without a journal", err, m.halted)
	}
	if err := m.journal.Write(record); err != nil {
		t.Fatal(err)
	}
	if err := m.resume(errors.New("disk")); err != nil || m.halted {
		t.Fatalf("error %v, halted %t: it did not go on", err, m.halted)
	}
	if err := os.RemoveAll(m.journal.Dir); err != nil {
		t.Fatal(err)
	}
}
