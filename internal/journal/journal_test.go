package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// banned is the record of a migration that has ended.
func banned(t *testing.T) migration.Record {
	t.Helper()
	record, err := migration.Banned("0000000000000001", "a", "b", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	return record
}

func newJournal(t *testing.T, definition engine.Definition) *Journal {
	t.Helper()
	dir := t.TempDir()
	return &Journal{Dir: filepath.Join(dir, "0000000000000001"), Definition: definition, Boot: "first",
		Spare: durable.NewSpare(dir)}
}

// TestNoSecretsAfterwards: as long as a migration is under way its journal has the whole
// definition, and then nothing that may be secret.
func TestNoSecretsAfterwards(t *testing.T) {
	const secret = "hunter2"
	definition := engine.Definition{
		ID: "x", Name: "web", Env: []string{"PASSWORD=" + secret},
		Args: []string{"serve", "--password", secret}, Labels: map[string]string{"key": secret},
		Health:  &engine.Health{Command: []string{"probe", secret}},
		Engine:  json.RawMessage(`{"env":"` + secret + `"}`),
		Volumes: []engine.Volume{{Name: "data"}},
	}
	record, journal := banned(t), newJournal(t, definition)
	look := func(when string, want bool) {
		t.Helper()
		data, err := os.ReadFile(journal.path())
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(data, []byte(secret)); got != want {
			t.Errorf("%s the journal has a secret: %v, want %v", when, got, want)
		}
		if !bytes.Contains(data, []byte(`"data"`)) {
			t.Errorf("%s the journal does not have the volumes", when)
		}
	}
	under := record
	under.State = migration.Waiting
	if err := journal.Write(under); err != nil {
		t.Fatal(err)
	}
	look("under way", true)
	if err := journal.Write(record); err != nil {
		t.Fatal(err)
	}
	look("afterwards", false)
	if !HasSecrets(definition) || HasSecrets(WithoutSecrets(definition)) {
		t.Error("secrets are not found, or not left out")
	}
}

// TestRead: what was written is read, what never was is told from what cannot be read.
func TestRead(t *testing.T) {
	journal := newJournal(t, engine.Definition{ID: "x", Name: "web"})
	if _, err := journal.Read(); !errors.Is(err, ErrNone) {
		t.Errorf("before it began: %v", err)
	}
	if err := journal.Write(banned(t)); err != nil {
		t.Fatal(err)
	}
	read, err := Read(journal.Dir)
	if err != nil || read.Record.Spec.ID != "0000000000000001" || read.Definition.Name != "web" ||
		read.Boot != "first" {
		t.Errorf("%+v, %v", read, err)
	}
	if err := os.WriteFile(journal.path(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Read(); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("damaged: %v", err)
	}
	if err := os.Remove(journal.path()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(journal.path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Read(); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("not a file: %v", err)
	}
	if err := journal.Write(banned(t)); err == nil {
		t.Error("written over a directory")
	}
}

// TestLost: after a boot only that counts of which somebody has made sure.
func TestLost(t *testing.T) {
	journal := newJournal(t, engine.Definition{})
	if err := journal.Synced(); err == nil {
		t.Error("noted in a directory that is not there")
	}
	if err := journal.Write(banned(t)); err != nil {
		t.Fatal(err)
	}
	if journal.Lost("first") || !journal.Lost("second") {
		t.Error("the boot does not count")
	}
	if err := journal.Synced(); err != nil || journal.Lost("second") {
		t.Errorf("what is on disk is lost: %v", err)
	}
}

// TestSince: the file system tells when a migration came to be known, and its beginning does if not.
func TestSince(t *testing.T) {
	journal, otherwise := newJournal(t, engine.Definition{}), time.Unix(1, 0)
	if got := journal.Since(otherwise); !got.Equal(otherwise) {
		t.Errorf("without a directory: %s", got)
	}
	if err := journal.Write(banned(t)); err != nil {
		t.Fatal(err)
	}
	if age := time.Since(journal.Since(time.Now())); age < 0 || age > time.Hour {
		t.Errorf("known for %s", age)
	}
}
