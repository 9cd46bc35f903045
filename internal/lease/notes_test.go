package lease

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNotesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "releases.json")
	noted := &notes{path: path}
	first := release{Address: netip.MustParseAddr("10.88.1.2"), Container: "first"}
	// the later of two counts
	for _, todo := range []release{{Container: "first"}, {Container: "second"}, first} {
		if err := noted.change(todo.Container, &todo); err != nil {
			t.Fatal(err)
		}
	}
	again := &notes{path: path}
	all, err := again.list()
	if err != nil || !slices.Equal(all, []release{{Container: "second"}, first}) {
		t.Fatalf("after a restart: %v, error %v", all, err)
	}
	for _, container := range []string{"first", "second", "never"} {
		if err := again.change(container, nil); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := noted.list(); err != nil || len(all) != 0 {
		t.Errorf("left: %v, error %v", all, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := noted.list(); err == nil {
		t.Error("a damaged file counts as empty")
	}
}
