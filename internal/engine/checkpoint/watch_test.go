package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFindFiles finds watched files, those in directories first, and names a link that is itself watched.
func TestFindFiles(t *testing.T) {
	root := t.TempDir()
	wanted := map[fileID]bool{}
	for _, path := range []string{"outer", "outer/inner"} {
		if err := os.Mkdir(filepath.Join(root, path), 0o755); err != nil {
			t.Fatal(err)
		}
		want(t, filepath.Join(root, path), wanted)
	}
	if err := os.WriteFile(filepath.Join(root, "outer/file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(root, "outer/file"), wanted)
	found, err := findFiles(t.Context(), root, wanted)
	if err != nil || strings.Join(found, " ") != "/outer/file /outer/inner /outer" {
		t.Errorf("found %v, %v", found, err)
	}
	if err := os.Symlink("file", filepath.Join(root, "outer/link")); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(root, "outer/link"), wanted)
	if found, err := findFiles(t.Context(), root, wanted); err == nil ||
		!strings.Contains(err.Error(), "/outer/link: inotify watches the symbolic link itself") {
		t.Errorf("found %v, %v; want that a link is watched", found, err)
	}
}

func want(t *testing.T, path string, wanted map[fileID]bool) {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	wanted[fileID{stat.Dev, stat.Ino}] = true
}
