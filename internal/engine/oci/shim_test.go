package oci

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/mounts"
)

// TestForgetShim: what is mounted in the directories of a shim that was killed goes, with them, and what was mounted keeps its files.
func TestForgetShim(t *testing.T) {
	root := t.TempDir()
	bundle, state := filepath.Join(root, "bundle"), filepath.Join(root, "state")
	for _, mounted := range []string{filepath.Join(bundle, "rootfs"), filepath.Join(state, "criu-root")} {
		for range 2 { // containerd's own, and that of the restore over it
			if err := mounts.Scratch(mounted); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = mounts.Unmount(mounted) })
		}
	}
	held, err := os.Create(filepath.Join(bundle, "rootfs", "kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for range 2 { // the second time there is nothing
		if err := ForgetShim(bundle, state); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("it has left %v (%v)", left, err)
	}
	var kept unix.Stat_t
	if err := unix.Fstat(int(held.Fd()), &kept); err != nil || kept.Nlink != 1 {
		t.Errorf("a file of what was mounted is gone: %d names (%v)", kept.Nlink, err)
	}
}
