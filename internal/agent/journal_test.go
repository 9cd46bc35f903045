package agent

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// TestFilesOfAnEarlierBoot: after a reboot a file system is always in sync, with what the crash has left of the files.
func TestFilesOfAnEarlierBoot(t *testing.T) {
	a := newTestAgent(t)
	a.boot = "before"
	unsure, sure := a.moves.journal("0000000000000001", engine.Definition{}), a.moves.journal("0000000000000002", engine.Definition{})
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

// elsewhere is an engine that keeps its containers in a directory of its own.
type elsewhere struct {
	engine.Engine
	upper string
	err   error
}

func (e elsewhere) Name() string { return "podman" }

func (e elsewhere) Trees(context.Context, string) ([]files.Tree, error) {
	return []files.Tree{{Kind: files.Writable, Path: e.upper}, {Kind: files.Memory, Path: "/none/there"}}, e.err
}

// TestFilesOfAnEngine: the source's copy goes only when the files are on disk where the engine keeps them, whichever disk that is.
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
		a.engines = engine.NewSet(a.engines.Of(engine.Definition{}), c.engine)
		journal := a.moves.journal("0000000000000001", engine.Definition{EngineName: "podman", ID: "x"})
		if err := journal.put([]byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := a.sync(journal); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}
