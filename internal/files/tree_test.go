package files

import (
	"os"
	"slices"
	"testing"
)

// TestWithoutLetsGo drops a tree that is held, and keeps another one.
func TestWithoutLetsGo(t *testing.T) {
	held := func() *os.File {
		directory, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = directory.Close() })
		return directory
	}
	dropped, kept := held(), held()
	trees := []Tree{{Kind: Memory, Held: dropped}, {Kind: Writable}, {Kind: Private, Held: kept}}
	got := Without(trees, func(tree Tree) bool { return tree.Kind == Memory })
	if !slices.Equal(got, []Tree{{Kind: Writable}, {Kind: Private, Held: kept}}) {
		t.Errorf("kept %v", got)
	}
	if _, err := dropped.Stat(); err == nil {
		t.Error("the directory of the dropped tree is still open")
	}
	if _, err := kept.Stat(); err != nil {
		t.Errorf("the directory of a tree that is wanted: %v", err)
	}
}
