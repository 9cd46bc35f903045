package lxc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// TestGroupsFromAnotherNode: control groups come with every container, and none outside of it is accepted.
func TestGroupsFromAnotherNode(t *testing.T) {
	dir := t.TempDir()
	if _, err := readGroups(dir); err == nil {
		t.Error("they may be left out")
	}
	group := cgroup.InnerGroup{Path: "init.scope", Processes: []int{1}}
	if err := writeGroups(dir,
		[]cgroup.InnerGroups{{Hierarchy: "pids", Groups: []cgroup.InnerGroup{group}}}); err != nil {
		t.Fatal(err)
	}
	found, err := readGroups(dir)
	if err != nil || len(found) != 1 || found[0].Groups[0].Path != "init.scope" {
		t.Errorf("%+v, %v", found, err)
	}
	for _, text := range []string{"", "{", `[{"groups":[{"path":"../other"}]}]`,
		"[" + strings.Repeat(" ", maxGroups) + "]"} {
		if err := os.WriteFile(filepath.Join(dir, groupsName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readGroups(dir); err == nil {
			t.Errorf("%.60q is taken", text)
		}
	}
}
