package docker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// writable returns the error that Docker would get when it writes a host name, as its BuildHostnameFile
// does.
func writable(path string) error { return os.WriteFile(path, []byte("name\n"), 0o644) }

// TestGuard checks that nobody can write the host name of a guarded container through its path, and that
// the file is the same afterwards.
func TestGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hostname")
	if err := writable(path); err != nil {
		t.Fatal(err)
	}
	before, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // an agent may not know that it has already done so
		if err := guard(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := writable(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("guarded, writing a host name says %v", err)
	}
	for range 2 {
		if err := unguard(path); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.Lstat(path)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the file is another one: %v, %v", after, err)
	}
	onlyHostname(t, path)
}

// TestGuardInterrupted checks that guard and unguard repair the leftovers of an agent that was killed at
// any moment.
func TestGuardInterrupted(t *testing.T) {
	interruptions := map[string]func(path string) error{
		"link made": func(path string) error { return os.Symlink(guardTarget, path+asideSuffix) },
		"file is gone": func(path string) error {
			return errors.Join(guard(path),
				os.Remove(path+asideSuffix))
		},
		"never started": os.Remove,
	}
	for name, interrupt := range interruptions {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "hostname")
			if err := errors.Join(writable(path), interrupt(path)); err != nil {
				t.Fatal(err)
			}
			if name == "link made" {
				if err := guard(path); err != nil {
					t.Fatal(err)
				}
			}
			if err := unguard(path); err != nil {
				t.Fatal(err)
			}
			if err := writable(path); err != nil {
				t.Errorf("Docker could not start it: %v", err)
			}
			onlyHostname(t, path)
		})
	}
}

func onlyHostname(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 || !entries[0].Type().IsRegular() {
		t.Errorf("left: %v, %v", entries, err)
	}
}
