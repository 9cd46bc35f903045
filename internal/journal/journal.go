package journal

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

// ErrNone says that nothing of a migration was ever journaled, so nothing of it was ever begun.
var ErrNone = errors.New("no journal")

// fileName is the journal's file in the directory of its migration.
const fileName = "journal.json"

// Entry is what is durable of one migration on this node: the machine's record, and what its work
// needs to go on.
type Entry struct {
	Record     migration.Record  `json:"record"`
	Definition engine.Definition `json:"definition"`
	Boot       string            `json:"boot"` // of the machine, when the migration began
}

// Journal is the file of one migration. Its directory holds the report too.
type Journal struct {
	Dir        string
	Definition engine.Definition // of the container
	Boot       string            // of the machine, when the migration began
	Spare      *durable.Spare    // room for it on a full disk
}

func (j *Journal) path() string { return filepath.Join(j.Dir, fileName) }

// Since is when this node came to know the migration: when its directory was made, if the file system tells.
func (j *Journal) Since(otherwise time.Time) time.Time {
	var status unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, j.Dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &status)
	if err != nil || status.Mask&unix.STATX_BTIME == 0 {
		return otherwise
	}
	return time.Unix(status.Btime.Sec, int64(status.Btime.Nsec))
}

// Write makes a record durable, on a full disk in the room that is kept for that. When the
// migration is over nobody makes the container from its definition any more, and what may be secret
// in it is left out.
func (j *Journal) Write(record migration.Record) error {
	definition := j.Definition
	if record.State == migration.Done {
		definition = WithoutSecrets(definition)
	}
	data, err := json.Marshal(Entry{Record: record, Definition: definition, Boot: j.Boot})
	if err != nil {
		return err
	}
	err = j.put(data)
	if durable.Full(err) && j.Spare.Spend() {
		err = j.put(data)
	}
	return err
}

// WithoutSecrets is a definition without what users put passwords and keys into: environment,
// labels, commands, and the engine's own part, which may repeat them.
func WithoutSecrets(definition engine.Definition) engine.Definition {
	definition.Env, definition.Labels, definition.Args, definition.Health, definition.Engine = nil, nil,
		nil, nil, nil
	return definition
}

// HasSecrets reports whether there is anything that WithoutSecrets leaves out.
func HasSecrets(d engine.Definition) bool {
	return len(d.Env) > 0 || len(d.Labels) > 0 || len(d.Args) > 0 || d.Health != nil || len(d.Engine) > 0
}

func (j *Journal) put(data []byte) error {
	if err := os.MkdirAll(j.Dir, 0o700); err != nil {
		return err
	}
	return kernel.WriteFileAtomic(j.path(), data, 0o600)
}

// Read is what was written last.
func (j *Journal) Read() (migration.Record, error) {
	read, err := Read(j.Dir)
	return read.Record, err
}

// durableName is the file that says that all that came with a container is on disk here.
const durableName = "durable"

// Synced notes that what came is on disk, for good.
func (j *Journal) Synced() error {
	return kernel.WriteFileAtomic(filepath.Join(j.Dir, durableName), nil, 0o600)
}

// Lost reports whether what came may not be on disk: the machine was booted since, and before anybody
// had made sure. All that can be made sure of now is what the crash has left.
func (j *Journal) Lost(boot string) bool {
	_, err := os.Lstat(filepath.Join(j.Dir, durableName))
	return err != nil && j.Boot != boot
}

// Read reads the journal in the directory of a migration.
func Read(dir string) (Entry, error) {
	var read Entry
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if errors.Is(err, os.ErrNotExist) {
		return read, ErrNone
	}
	if err != nil {
		return read, err
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return read, fmt.Errorf("journal in %s: %w", dir, err)
	}
	return read, nil
}
