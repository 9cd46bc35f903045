package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/volumes"
)

// ownEngine has one container: the test's process.
type ownEngine struct{ anewEngine }

func (ownEngine) Processes(context.Context, string) ([]int, error) { return []int{os.Getpid()}, nil }

// TestExamineInodes: an open database stands against a move unless a user knows better, or the inode stays.
func TestExamineInodes(t *testing.T) {
	a := newTestAgent(t)
	a.engines = engine.NewSet((*embedded.Engine)(nil), ownEngine{})
	definition := engine.Definition{ID: "one", EngineName: "anew"}
	dir, err := os.MkdirTemp("/dev/shm", "inodes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "db")
	if err := os.WriteFile(path, []byte("SQLite format 3\x00 and pages"), 0o600); err != nil {
		t.Fatal(err)
	}
	volume := []engine.Volume{{Kind: engine.Bind, Source: dir, Path: "/dev/shm"}}
	examine := func(chosen volumes.Chosen, settings migration.Settings) []engine.Problem {
		t.Helper()
		found, err := a.examineInodes(t.Context(), definition, chosen, settings)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := examine(volumes.Chosen{}, migration.Settings{}); len(found) > 0 {
		t.Errorf("before it is opened: %+v", found)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for what, chosen := range map[string]volumes.Chosen{
		"without volumes": {}, "on a volume that moves": {Volumes: volume, Same: []bool{false}},
	} {
		found := examine(chosen, migration.Settings{})
		if len(found) != 1 || !strings.HasSuffix(found[0].What, ": SQLite database "+path) {
			t.Errorf("%s: %+v", what, found)
			continue
		}
		for _, way := range []string{"--new-inodes", "--mode restart", "both nodes see the same inodes"} {
			if !strings.Contains(found[0].Remedy, way) {
				t.Errorf("%s: the remedy is %q, want %q in it", what, found[0].Remedy, way)
			}
		}
	}
	same := volumes.Chosen{Volumes: volume, Same: []bool{true}}
	if found := examine(same, migration.Settings{}); len(found) > 0 {
		t.Errorf("on storage where it keeps its inode: %+v", found)
	}
	if found := examine(volumes.Chosen{}, migration.Settings{NewInodes: true}); len(found) > 0 {
		t.Errorf("for a user who knows: %+v", found)
	}
}
