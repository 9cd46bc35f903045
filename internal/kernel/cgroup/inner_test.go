package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAround(t *testing.T) {
	for group, want := range map[string]string{
		"/lxc.payload.web/system.slice/nginx.service": "/lxc.payload.web",
		"/init/lxc.payload.web":                       "/init/lxc.payload.web",
		"/lxc.payload.out/lxc.payload.in/init.scope":  "/lxc.payload.out/lxc.payload.in",
		"/system.slice/web":                           "/system.slice/web",
		"/":                                           "/",
		"":                                            "",
	} {
		if got := around(group, "lxc.payload."); got != want {
			t.Errorf("%q: %q, want %q", group, got, want)
		}
	}
}

// TestCheckInner checks that another node's groups cannot lead elsewhere, and set nothing but limits.
func TestCheckInner(t *testing.T) {
	ask := func(hierarchy, path, file string) error {
		return CheckInner([]InnerGroups{{Hierarchy: hierarchy,
			Groups: []InnerGroup{{Path: path, Values: map[string]string{file: "1"}}}}})
	}
	for _, path := range []string{"init.scope", "system.slice/nginx.service", "a..b"} {
		if err := ask("pids", path, "pids.max"); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"", ".", "..", "../other", "/etc", "a/../../b", "a//b",
		"a/", strings.Repeat("x", maxInnerPath+1)} {
		if err := ask("pids", path, "pids.max"); err == nil {
			t.Errorf("%.40q is taken", path)
		}
	}
	for _, file := range []string{"cgroup.procs", "release_agent", "memory.limit_in_bytes", "../pids.max",
		"devices.allow"} {
		if err := ask("pids", "one", file); err == nil {
			t.Errorf("%s is taken", file)
		}
	}
	if err := CheckInner([]InnerGroups{{Groups: make([]InnerGroup, maxInnerGroups+1)}}); err == nil {
		t.Error("any number of groups is taken")
	}
}

// TestDelegates refuses groups with limits that are not carried.
func TestDelegates(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cgroup.subtree_control", "\n")
	write("cgroup.type", "domain\n")
	if err := delegates(dir); err != nil {
		t.Error(err)
	}
	write("cgroup.subtree_control", "memory pids\n")
	if err := delegates(dir); err == nil {
		t.Error("controllers for those within are not seen")
	}
	write("cgroup.subtree_control", "")
	write("cgroup.type", "threaded\n")
	if err := delegates(dir); err == nil {
		t.Error("a threaded group is not seen")
	}
}
