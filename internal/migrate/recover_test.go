package migrate

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

// TestUnreadJournalIsNotOverwritten: of a migration whose journal cannot be read nobody knows
// whether it ran. To say that it never did would let it run twice.
func TestUnreadJournalIsNotOverwritten(t *testing.T) {
	a := newNode(t)
	record, err := migration.Banned(testMigration, "a", "b", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	record.Version++
	record.ReadableFrom++
	written := a.moves.newJournal(testMigration, engine.Definition{})
	if err := written.Write(record); err != nil {
		t.Fatal(err)
	}
	if err := a.recovery.All(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(written.Dir + "/journal.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.moves.Find(testMigration); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("find: %v, want busy", err)
	}
	if err := a.moves.ban(testMigration, "a"); !errors.Is(err, engine.ErrBusy) {
		t.Errorf("ban: %v, want busy", err)
	}
	after, err := os.ReadFile(written.Dir + "/journal.json")
	if err != nil || string(after) != string(before) {
		t.Errorf("the journal was overwritten: %s, error %v", after, err)
	}
	unread := a.moves.unread.List()
	if len(unread) != 1 || unread[0].Report().Source != "a" ||
		!strings.Contains(*unread[0].Report().Error, "format") {
		t.Fatalf("unreadable: %+v", unread)
	}

	record.Version--
	record.ReadableFrom--
	if err := written.Write(record); err != nil {
		t.Fatal(err)
	}
	a.recovery.One(testMigration)
	if _, err := a.moves.Find(testMigration); err != nil || len(a.moves.unread.List()) > 0 {
		t.Errorf("not recovered when the journal could be read: %v", err)
	}
}

func TestBanIsDurable(t *testing.T) {
	a := newNode(t)
	if err := a.moves.ban(testMigration, "a"); err != nil {
		t.Fatal(err)
	}
	again := a.again(t)
	if err := again.recovery.All(); err != nil {
		t.Fatal(err)
	}
	m, err := again.moves.Find(testMigration)
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(m.since); age < 0 || age > time.Hour {
		t.Errorf("it is known since %s", m.since)
	}
	answer, err := m.Step(migration.Asked{})
	if err != nil || answer == nil || answer.Kind != migration.KindNeverRan {
		t.Fatalf("answer %v, error %v; want never-ran", answer, err)
	}
	m.Happen(migration.Received{Message: migration.Message{Kind: migration.KindConfirm}}) // does not panic
}

// TestOldSecrets: an agent that does not know that secrets are left out has left a journal with them.
func TestOldSecrets(t *testing.T) {
	a := newNode(t)
	definition := engine.Definition{ID: "x", Name: "web", Env: []string{"PASSWORD=hunter2"}}
	record, err := migration.Banned("0000000000000001", "a", "b", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := json.Marshal(journal.Entry{Record: record, Definition: definition})
	if err != nil {
		t.Fatal(err)
	}
	file := a.moves.newJournal(record.Spec.ID, definition)
	if err := putJournal(file, string(whole)); err != nil {
		t.Fatal(err)
	}
	a.recovery.One(record.Spec.ID)
	read, err := journal.Read(file.Dir)
	if err != nil || read.Definition.Name != "web" || journal.HasSecrets(read.Definition) {
		t.Errorf("%+v, %v", read.Definition, err)
	}
}
