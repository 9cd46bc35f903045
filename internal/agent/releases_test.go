package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestReleasesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "releases.json")
	kept := &releases{path: path}
	first := release{Address: netip.MustParseAddr("10.88.1.2"), Container: "first"}
	// the later of two counts
	for _, todo := range []release{{Container: "first"}, {Container: "second"}, first} {
		if err := kept.change(todo.Container, &todo); err != nil {
			t.Fatal(err)
		}
	}
	again := &releases{path: path}
	all, err := again.list()
	if err != nil || !slices.Equal(all, []release{{Container: "second"}, first}) {
		t.Fatalf("after a restart: %v, error %v", all, err)
	}
	for _, container := range []string{"first", "second", "never"} {
		if err := again.change(container, nil); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := kept.list(); err != nil || len(all) != 0 {
		t.Errorf("left: %v, error %v", all, err)
	}
	write(t, path, []byte("{"))
	if _, err := kept.list(); err == nil {
		t.Error("a damaged file counts as empty")
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
