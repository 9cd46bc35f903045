package push

import (
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

// SpillBytes is what pages that stay at the source may take on its disk; 0: they are not to be written there,
// or none stays.
func SpillBytes(mode migration.Mode, settings migration.Settings, memoryBytes int64) int64 {
	if !settings.Spill || mode == migration.Cold || mode == migration.Restart {
		return 0
	}
	return postcopy.SpillBytes(memoryBytes)
}

// ExamineRoom looks whether there is room for so much on the disk of this node, below dir. Nothing is asked
// of the disk if that is nothing.
func ExamineRoom(node, dir string, needed int64) []engine.Problem {
	if needed == 0 {
		return nil
	}
	err := files.CheckSpace(dir, needed)
	if err == nil {
		return nil
	}
	return []engine.Problem{{
		What:   "disk of " + node,
		Why:    "--spill needs room for the pages that follow: " + err.Error(),
		Remedy: "free space there, or move the container without --spill",
	}}
}

// KeepsNoKey is what stands against a target that keeps the key of the pages on the disk, or does not; nil:
// nothing does, or no key is needed.
func KeepsNoKey(node string, needed int64, keeps bool) *migration.Problem {
	if needed == 0 || keeps {
		return nil
	}
	return &migration.Problem{
		What:   "--spill",
		Why:    node + " runs a version of godwit that does not keep the key of pages on this node's disk",
		Remedy: "upgrade " + node + ", or move the container without --spill",
	}
}
