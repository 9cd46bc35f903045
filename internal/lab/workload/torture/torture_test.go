package torture

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/filestest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		if err := Run(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNothingOutsideIsTouched puts every kind of link that leads out of the directory in the processes'
// way.
func TestNothingOutsideIsTouched(t *testing.T) {
	outside := t.TempDir()
	inside := filepath.Join(outside, "inside")
	for _, dir := range []string{"other", "inside/dir1", "inside/dir1/dir0"} {
		check(t, os.MkdirAll(filepath.Join(outside, dir), 0o755))
	}
	check(t, os.WriteFile(filepath.Join(outside, "canary"), []byte("untouched"), 0o644))
	check(t, os.WriteFile(filepath.Join(outside, "other/a"), []byte("untouched"), 0o644))
	check(t, os.Symlink("..", filepath.Join(inside, "dir0")))
	check(t, os.Symlink(filepath.Join(outside, "other"), filepath.Join(inside, "dir2")))
	for _, dir := range []string{"", "dir1", "dir1/dir0"} {
		for _, name := range []string{"a", "c", "log"} {
			check(t, os.Symlink(filepath.Join(outside, "canary"), filepath.Join(inside, dir, name)))
		}
		check(t, os.Symlink("../../canary", filepath.Join(inside, dir, "b")))
	}
	look := func() filestest.Snapshot {
		s, err := filestest.Take(outside, filestest.Options{})
		check(t, err)
		for path := range s {
			if len(path) > 7 && path[:7] == "/inside" {
				delete(s, path)
			}
		}
		return s
	}
	before := look()
	gang, err := Start("/proc/self/exe",
		Config{Dir: inside, Seed: 1, Processes: 2, Locks: true, Reserve: true, Long: true, Tell: 100})
	check(t, err)
	t.Cleanup(func() {
		check(t, gang.Kill())
		check(t, files.RemoveTree(inside))
	})
	check(t, gang.Await(50))
	check(t, gang.Freeze())
	for _, difference := range filestest.Differences(before, look(), 10) {
		t.Error(difference)
	}
}
