package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
)

// errNoJournal says that nothing of a migration was ever journaled, so nothing of it was ever begun.
var errNoJournal = errors.New("no journal")

// journalName is the journal's file in the directory of its migration.
const journalName = "journal.json"

// entry is what is durable of one migration on this node: the machine's record, and what its work
// needs to go on.
type entry struct {
	Record     migration.Record  `json:"record"`
	Definition engine.Definition `json:"definition"`
	Boot       string            `json:"boot"` // of the machine, when the migration began
}

// journal is the file of one migration. Its directory holds the report too.
type journal struct {
	dir        string
	definition engine.Definition
	boot       string
	spare      *durable.Spare
}

func (j *journal) path() string { return filepath.Join(j.dir, journalName) }

// since is when this node came to know the migration: when its directory was made, if the file system tells.
func (j *journal) since(otherwise time.Time) time.Time {
	var status unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, j.dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &status)
	if err != nil || status.Mask&unix.STATX_BTIME == 0 {
		return otherwise
	}
	return time.Unix(status.Btime.Sec, int64(status.Btime.Nsec))
}

// write makes a record durable, on a full disk in the room that is kept for that. When the
// migration is over nobody makes the container from its definition any more, and what may be secret
// in it is left out.
func (j *journal) write(record migration.Record) error {
	definition := j.definition
	if record.State == migration.Done {
		definition = withoutSecrets(definition)
	}
	data, err := json.Marshal(entry{Record: record, Definition: definition, Boot: j.boot})
	if err != nil {
		return err
	}
	err = j.put(data)
	if durable.Full(err) && j.spare.Spend() {
		err = j.put(data)
	}
	return err
}

// withoutSecrets is a definition without what users put passwords and keys into: environment,
// labels, commands, and the engine's own part, which may repeat them.
func withoutSecrets(definition engine.Definition) engine.Definition {
	definition.Env, definition.Labels, definition.Args, definition.Health, definition.Engine = nil, nil,
		nil, nil, nil
	return definition
}

// hasSecrets reports whether there is anything that withoutSecrets leaves out.
func hasSecrets(d engine.Definition) bool {
	return len(d.Env) > 0 || len(d.Labels) > 0 || len(d.Args) > 0 || d.Health != nil || len(d.Engine) > 0
}

func (j *journal) put(data []byte) error {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	return kernel.WriteFileAtomic(j.path(), data, 0o600)
}

func (j *journal) read() (migration.Record, error) {
	read, err := readEntry(j.dir)
	return read.Record, err
}

// durableName is the file that says that all that came with a container is on disk here.
const durableName = "durable"

// synced notes that what came is on disk, for good.
func (j *journal) synced() error {
	return kernel.WriteFileAtomic(filepath.Join(j.dir, durableName), nil, 0o600)
}

// lost reports whether what came may not be on disk: the machine was booted since, and before anybody
// had made sure. All that can be made sure of now is what the crash has left.
func (j *journal) lost(boot string) bool {
	_, err := os.Lstat(filepath.Join(j.dir, durableName))
	return err != nil && j.boot != boot
}

func readEntry(dir string) (entry, error) {
	var read entry
	data, err := os.ReadFile(filepath.Join(dir, journalName))
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
