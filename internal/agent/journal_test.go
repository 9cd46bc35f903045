package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

// TestFilesOfAnEarlierBoot: after a reboot a file system is always in sync, with what the crash has
// left of the files.
func TestFilesOfAnEarlierBoot(t *testing.T) {
	a := newTestAgent(t)
	a.boot = "before"
	unsure, sure := a.moves.journal("0000000000000001", engine.Definition{}),
		a.moves.journal("0000000000000002", engine.Definition{})
	for _, file := range []*journal.Journal{unsure, sure} {
		if err := putJournal(file, "{}"); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.sync(sure); err != nil {
		t.Fatal(err)
	}
	a.boot = "after"
	if err := a.sync(unsure); status.Code(err) != codes.DataLoss {
		t.Errorf("error %v, want data loss", err)
	}
	if err := a.sync(sure); err != nil {
		t.Errorf("what was on disk before the reboot is not any more: %v", err)
	}
}

// TestOldSecrets: an agent that does not know that secrets are left out has left a journal with them.
func TestOldSecrets(t *testing.T) {
	a := newTestAgent(t)
	definition := engine.Definition{ID: "x", Name: "web", Env: []string{"PASSWORD=hunter2"}}
	record, err := migration.Banned("0000000000000001", "a", "b", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := json.Marshal(journal.Entry{Record: record, Definition: definition})
	if err != nil {
		t.Fatal(err)
	}
	file := a.moves.journal(record.Spec.ID, definition)
	if err := putJournal(file, string(whole)); err != nil {
		t.Fatal(err)
	}
	a.moves.recoverOne(record.Spec.ID)
	read, err := journal.Read(file.Dir)
	if err != nil || read.Definition.Name != "web" || journal.HasSecrets(read.Definition) {
		t.Errorf("%+v, %v", read.Definition, err)
	}
}

// putJournal makes a journal with any content.
func putJournal(file *journal.Journal, content string) error {
	if err := os.MkdirAll(file.Dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(file.Dir, "journal.json"), []byte(content), 0o600)
}

// elsewhere is an engine that keeps its containers in a directory of its own.
type elsewhere struct {
	engine.Engine
	upper string
	err   error
}

func (e elsewhere) Name() string { return "podman" }

func (elsewhere) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (e elsewhere) Trees(context.Context, string) ([]files.Tree, error) {
	return []files.Tree{{Kind: files.Writable, Path: e.upper}, {Kind: files.Memory, Path: "/none/there"}},
		e.err
}

// TestFilesOfAnEngine: the source's copy goes only when the files are on disk where the engine
// keeps them, whichever disk that is.
func TestFilesOfAnEngine(t *testing.T) {
	failed, dir := errors.New("failed"), t.TempDir()
	for what, c := range map[string]struct {
		engine elsewhere
		want   error
	}{
		"on disk":       {elsewhere{upper: dir}, nil},
		"not there":     {elsewhere{upper: filepath.Join(dir, "none")}, fs.ErrNotExist},
		"removed since": {elsewhere{upper: "/none/there", err: engine.ErrNotFound}, nil},
		"no answer":     {elsewhere{upper: dir, err: failed}, failed},
	} {
		a := newTestAgent(t)
		a.engines = engine.NewSet(a.engines.EngineFor(engine.Definition{}), c.engine)
		file := a.moves.journal("0000000000000001", engine.Definition{EngineName: "podman", ID: "x"})
		if err := putJournal(file, "{}"); err != nil {
			t.Fatal(err)
		}
		if err := a.sync(file); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}
