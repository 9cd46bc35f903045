package agent

import (
	"bytes"
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
	"github.com/godwit/godwit/internal/migration"
)

// TestFilesOfAnEarlierBoot: after a reboot a file system is always in sync, with what the crash has
// left of the files.
func TestFilesOfAnEarlierBoot(t *testing.T) {
	a := newTestAgent(t)
	a.boot = "before"
	unsure, sure := a.moves.journal("0000000000000001", engine.Definition{}),
		a.moves.journal("0000000000000002", engine.Definition{})
	for _, journal := range []*journal{unsure, sure} {
		if err := journal.put([]byte("{}")); err != nil {
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

// TestNoSecretsAfterwards: as long as a migration is under way its journal has the whole
// definition, and then nothing that may be secret, also of one that an agent without this has left.
func TestNoSecretsAfterwards(t *testing.T) {
	const secret = "hunter2"
	a := newTestAgent(t)
	definition := engine.Definition{
		ID: "x", Name: "web", Env: []string{"PASSWORD=" + secret},
		Args: []string{"serve", "--password", secret}, Labels: map[string]string{"key": secret},
		Health:  &engine.Health{Command: []string{"probe", secret}},
		Engine:  json.RawMessage(`{"env":"` + secret + `"}`),
		Volumes: []engine.Volume{{Name: "data"}},
	}
	record, err := migration.Banned("0000000000000001", "a", "b", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	journal := a.moves.journal(record.Spec.ID, definition)
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
	if err := journal.write(under); err != nil {
		t.Fatal(err)
	}
	look("under way", true)
	if err := journal.write(record); err != nil {
		t.Fatal(err)
	}
	look("afterwards", false)

	whole, err := json.Marshal(entry{Record: record, Definition: definition})
	if err != nil {
		t.Fatal(err)
	}
	if err := journal.put(whole); err != nil {
		t.Fatal(err)
	}
	a.moves.recoverOne(record.Spec.ID)
	look("of an earlier agent", false)
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
		journal := a.moves.journal("0000000000000001", engine.Definition{EngineName: "podman", ID: "x"})
		if err := journal.put([]byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := a.sync(journal); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}
