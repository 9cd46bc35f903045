package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
