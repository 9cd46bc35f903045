package agent

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

// TestLeftoverSpill removes what the end of a migration has not, at the agent's start.
func TestLeftoverSpill(t *testing.T) {
	a := newTestAgent(t)
	record, err := migration.Banned(testMigration, "a", "b", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := (&journal.Journal{Dir: a.moves.Dir(testMigration)}).Write(record); err != nil {
		t.Fatal(err)
	}
	path := a.spillPath(testMigration)
	for _, name := range []string{path, postcopy.SpillBegun(path)} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.recovery.One(testMigration)
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// TestSpillRoom refuses a disk without room, and asks nothing of it if nothing is to be written.
func TestSpillRoom(t *testing.T) {
	a := newTestAgent(t)
	settings := migration.Settings{Spill: true}
	const much = math.MaxInt64 / 2
	found := a.examineSpill(spillBytes(migration.PostCopy, settings, much))
	if len(found) != 1 || !strings.Contains(found[0].Why, "--spill") {
		t.Errorf("%+v", found)
	}
	for _, needed := range []int64{
		spillBytes(migration.PostCopy, settings, 1<<20), spillBytes(migration.Cold, settings, much),
		spillBytes(migration.PostCopy, migration.Settings{}, much),
	} {
		if found := a.examineSpill(needed); len(found) > 0 {
			t.Errorf("%d bytes: %+v", needed, found)
		}
	}
}

// TestSpillNeedsTarget refuses a target that says nothing of keys, if one is needed.
func TestSpillNeedsTarget(t *testing.T) {
	older, newer := &api.Reservation{}, &api.Reservation{KeepsSpillKey: true}
	problem := keepsNoSpillKey("b", 1, older)
	if problem == nil || !strings.Contains(problem.Remedy, "upgrade b") {
		t.Errorf("an older target: %+v", problem)
	}
	if keepsNoSpillKey("b", 1, newer) != nil || keepsNoSpillKey("b", 0, older) != nil {
		t.Error("a target is refused that can, or need not")
	}
}
