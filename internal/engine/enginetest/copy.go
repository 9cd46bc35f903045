package enginetest

import (
	"bytes"
	"testing"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/copies"
)

// CopyTrees copies trees that do not change, as a migration does in its freeze.
func CopyTrees(t testing.TB, trees []files.Tree, place copies.Place) {
	t.Helper()
	source, err := copies.NewSource(copies.Config{Trees: trees, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	mirror := copies.NewMirror(place, files.Limits{})
	for last := false; !last; {
		var round bytes.Buffer
		if _, err := source.Last(t.Context(), &round, nil); err != nil {
			t.Fatal(err)
		}
		if last, err = mirror.Round(t.Context(), &round); err != nil {
			t.Fatal(err)
		}
	}
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mirror.Close(); err != nil {
		t.Fatal(err)
	}
}
