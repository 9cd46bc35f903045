package kerneltest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Freezers are the hierarchies of both versions, mounted for the test if the machine has not mounted them.
func Freezers(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) { // proc_pid_mountinfo(5)
		where, what, _ := strings.Cut(line, " - ")
		point, of := strings.Fields(where)[4], strings.Fields(what)
		switch {
		case of[0] == "cgroup2" && found["version 2"] == "":
			found["version 2"] = point
		case of[0] == "cgroup" && found["version 1"] == "" &&
			slices.Contains(strings.Split(of[2], ","), "freezer"):
			found["version 1"] = point
		}
	}
	for version, mount := range map[string][2]string{"version 1": {"cgroup", "freezer"},
		"version 2": {"cgroup2", ""}} {
		if found[version] != "" {
			continue
		}
		dir := t.TempDir()
		if err := unix.Mount("cgroup", dir, mount[0], 0, mount[1]); err != nil {
			t.Fatalf("mount %s: %v", version, err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		found[version] = dir
	}
	return found
}
