package oci

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestForget checks that the record of an arrival never exists without that of its restore proxy.
func TestForget(t *testing.T) {
	e, id := awayEngine(t), strings.Repeat("a", 64)
	if err := save(e.records.arrivalPath(id), arrivalRecord{}); err != nil {
		t.Fatal(err)
	}
	// something is mounted on it, so it cannot be removed
	if err := os.Mkdir(e.records.recordPath(id), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", e.records.recordPath(id), "tmpfs", 0, ""); err != nil {
		t.Fatalf("mount: %v", err)
	}
	defer func() { _ = unix.Unmount(e.records.recordPath(id), unix.MNT_DETACH) }()
	if err := e.records.forget(id); err == nil {
		t.Error("there was nothing to stop at")
	}
	entries, err := os.ReadDir(e.records.dir(id))
	if err != nil || slices.ContainsFunc(entries,
		func(e os.DirEntry) bool { return e.Name() == "arrival.json" }) {
		t.Errorf("%v, %v", entries, err)
	}
}
