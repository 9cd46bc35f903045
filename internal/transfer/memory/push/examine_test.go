package push

import (
	"math"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

// TestSpillRoom refuses a disk without room, and asks nothing of it if nothing is to be written.
func TestSpillRoom(t *testing.T) {
	dir, settings := t.TempDir(), migration.Settings{Spill: true}
	const much = math.MaxInt64 / 2
	found := ExamineRoom("a", dir, SpillBytes(migration.PostCopy, settings, much))
	if len(found) != 1 || !strings.Contains(found[0].Why, "--spill") || found[0].What != "disk of a" {
		t.Errorf("%+v", found)
	}
	for _, needed := range []int64{
		SpillBytes(migration.PostCopy, settings, 1<<20), SpillBytes(migration.Cold, settings, much),
		SpillBytes(migration.PostCopy, migration.Settings{}, much),
	} {
		if found := ExamineRoom("a", dir, needed); len(found) > 0 {
			t.Errorf("%d bytes: %+v", needed, found)
		}
	}
}

// TestSpillNeedsTarget refuses a target that says nothing of keys, if one is needed.
func TestSpillNeedsTarget(t *testing.T) {
	problem := KeepsNoKey("b", 1, false)
	if problem == nil || !strings.Contains(problem.Remedy, "upgrade b") {
		t.Errorf("an older target: %+v", problem)
	}
	if KeepsNoKey("b", 1, true) != nil || KeepsNoKey("b", 0, false) != nil {
		t.Error("a target is refused that can, or need not")
	}
}
