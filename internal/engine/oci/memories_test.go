package oci

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/files"
)

// heldIn returns what holds the memory at a path of a container with this first process.
func heldIn(t *testing.T, path string, first checkpoint.Identity) *held {
	t.Helper()
	opened, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() }) // already done if it was dropped
	return &held{memories: map[string]memories{"x": {of: first, held: []*os.File{opened}}}}
}

// TestLetGo checks that memory of a container that has ended is not held.
func TestLetGo(t *testing.T) {
	self, err := checkpoint.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ended := self
	ended.StartTicks++ // another process got the PID
	for _, c := range []struct {
		first checkpoint.Identity
		kept  bool
	}{{self, true}, {ended, false}} {
		e := heldIn(t, t.TempDir(), c.first)
		held := e.memories["x"].held[0]
		e.LetGo()
		if _, err := held.Stat(); (err == nil) != c.kept || (len(e.memories) == 1) != c.kept {
			t.Errorf("%+v: %v, %d left", c, err, len(e.memories))
		}
	}
}

// TestTreesAfterLetGo checks that a returned tree does not become another container's when the engine lets
// go of it.
func TestTreesAfterLetGo(t *testing.T) {
	mine, other := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(mine, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := heldIn(t, mine, checkpoint.Identity{})
	trees, err := e.memories["x"].trees()
	if err != nil {
		t.Fatal(err)
	}
	e.LetGo()
	for range 8 { // they reuse the free descriptors
		another, err := os.Open(other)
		if err != nil {
			t.Fatal(err)
		}
		defer another.Close()
	}
	if _, err := os.Stat(filepath.Join(trees[0].Path, "mine")); err != nil {
		t.Error(err)
	}
	files.LetGo(trees)
	if _, err := trees[0].Held.Stat(); err == nil {
		t.Error("it is held still")
	}
}
