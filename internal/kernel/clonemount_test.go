package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloneMount checks that nothing below another mount is visible, and that only a mount in memory can be
// opened.
func TestCloneMount(t *testing.T) {
	dir := t.TempDir()
	mount := func(path string) {
		t.Helper()
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", path, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
	mount(filepath.Join(dir, "own"))
	mount(filepath.Join(dir, "own", "below"))
	if err := os.WriteFile(filepath.Join(dir, "own", "below", "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("own", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "link"), filepath.Join(dir, "none")} {
		if f, err := CloneMount(os.Getpid(), path); err == nil {
			f.Close()
			t.Errorf("%s was opened", path)
		}
	}
	f, err := CloneMount(os.Getpid(), filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/self/fd/%d/below", f.Fd()))
	if err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestSealMounts checks that the mounts cannot be written to any more, by any link, and that everything
// else can.
func TestSealMounts(t *testing.T) {
	dir := t.TempDir()
	mount := filepath.Join(dir, "mount")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	if err := SealMounts(os.Getpid(), []string{mount, dir, filepath.Join(dir, "none")}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mount, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a mount: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Errorf("write beside it: %v", err)
	}
}
