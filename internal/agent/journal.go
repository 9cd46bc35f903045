package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
)

// errNoJournal says that nothing of a migration was ever journaled, so nothing of it was ever begun.
var errNoJournal = errors.New("no journal")

// entry is what is durable of one migration on this node: the machine's record, and what its work needs to go on.
type entry struct {
	Record     migration.Record  `json:"record"`
	Definition engine.Definition `json:"definition"`
}

// journal is the file of one migration. Its directory holds the report too.
type journal struct {
	dir        string
	definition engine.Definition
}

func (j *journal) path() string { return filepath.Join(j.dir, "journal.json") }

// write makes a record durable.
func (j *journal) write(record migration.Record) error {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(entry{Record: record, Definition: j.definition})
	if err != nil {
		return err
	}
	return kernel.WriteFileAtomic(j.path(), data, 0o600)
}

func (j *journal) read() (migration.Record, error) {
	read, err := readEntry(j.dir)
	return read.Record, err
}

func readEntry(dir string) (entry, error) {
	var read entry
	data, err := os.ReadFile(filepath.Join(dir, "journal.json"))
	if errors.Is(err, os.ErrNotExist) {
		return read, errNoJournal
	}
	if err != nil {
		return read, err
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return read, fmt.Errorf("journal in %s: %w", dir, err)
	}
	return read, nil
}
