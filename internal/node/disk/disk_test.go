package disk

import (
	"context"
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
)

// nothing is a part of a container that is on disk.
type nothing struct{ err error }

func (n nothing) Sync() error { return n.err }

// volumes are on disk.
type volumes struct{ nothing }

func (v volumes) Sync(engine.Definition) error { return v.err }

// own is the node's own engine.
type own struct{ engine.Engine }

func (own) Name() string { return "embedded" }

func (own) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func newDisk(t *testing.T, others ...engine.Engine) *Disk {
	t.Helper()
	return New(Config{
		Node: "b", StateDir: t.TempDir(), Engines: engine.NewSet(own{}, others...), Images: nothing{},
		Volumes: volumes{}, Timeout: time.Minute, Life: t.Context(),
	})
}

// TestFilesOfAnEarlierBoot: after a reboot a file system is always in sync, with what the crash has
// left of the files.
func TestFilesOfAnEarlierBoot(t *testing.T) {
	d := newDisk(t)
	d.config.Boot = "before"
	unsure, sure := &journal.Journal{Dir: t.TempDir(), Boot: "before"},
		&journal.Journal{Dir: t.TempDir(), Boot: "before"}
	for _, file := range []*journal.Journal{unsure, sure} {
		if err := putJournal(file, "{}"); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Sync(sure); err != nil {
		t.Fatal(err)
	}
	d.config.Boot = "after"
	if err := d.Sync(unsure); status.Code(err) != codes.DataLoss {
		t.Errorf("error %v, want data loss", err)
	}
	if err := d.Sync(sure); err != nil {
		t.Errorf("what was on disk before the reboot is not any more: %v", err)
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
		d := newDisk(t, c.engine)
		file := &journal.Journal{
			Dir: t.TempDir(), Definition: engine.Definition{EngineName: "podman", ID: "x"},
		}
		if err := putJournal(file, "{}"); err != nil {
			t.Fatal(err)
		}
		if err := d.Sync(file); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

// TestPartsThatAreNotOnDisk: what cannot be brought to the disk is not promised.
func TestPartsThatAreNotOnDisk(t *testing.T) {
	failed := errors.New("failed")
	for what, change := range map[string]func(*Config){
		"images":    func(c *Config) { c.Images = nothing{failed} },
		"volumes":   func(c *Config) { c.Volumes = volumes{nothing{failed}} },
		"directory": func(c *Config) { c.StateDir = filepath.Join(c.StateDir, "none") },
	} {
		d := newDisk(t)
		change(&d.config)
		file := &journal.Journal{Dir: t.TempDir()}
		if err := putJournal(file, "{}"); err != nil {
			t.Fatal(err)
		}
		if err := d.Sync(file); err == nil {
			t.Errorf("%s are taken to be on disk", what)
		}
	}
}
