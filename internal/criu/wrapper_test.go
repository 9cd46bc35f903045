package criu

import (
	"slices"
	"testing"
)

// fromLXC is the command line with which LXC 5.0.2 and 7.0 start CRIU (src/lxc/criu.c, exec_criu).
var fromLXC = []string{
	"criu", "restore", "--tcp-established", "--file-locks", "--link-remap", "--manage-cgroups=full",
	"--ext-mount-map", "auto",
	"--enable-external-sharing", "--enable-external-masters", "--enable-fs", "hugetlbfs", "--enable-fs",
	"tracefs", "-D", "/ck",
	"-o", "/ck/restore.log", "--cgroup-root", "name=systemd:/lxc.payload.one", "--cgroup-root",
	"freezer:/lxc.payload.one",
	"--cgroup-root", "hugetlb:/init/lxc.payload.one", "--ext-mount-map", "lib:/usr/lib", "--root",
	"/usr/lib/lxc/rootfs",
	"--restore-detached", "--restore-sibling", "--ext-mount-map", "console:", "--lsm-profile",
	"apparmor:unconfined",
}

func TestRestoreOptions(t *testing.T) {
	o, err := restoreOptions(fromLXC[1:])
	if err != nil {
		t.Fatal(err)
	}
	if o.GetRoot() != "/usr/lib/lxc/rootfs" || !o.GetRstSibling() ||
		o.GetLsmProfile() != "apparmor:unconfined" ||
		!slices.Equal(o.EnableFs, []string{"hugetlbfs", "tracefs", "ramfs"}) {
		t.Errorf("options: %v", o)
	}
	if len(o.ExtMnt) != 1 || o.ExtMnt[0].GetKey() != "lib" || o.ExtMnt[0].GetVal() != "/usr/lib" {
		t.Errorf("external mounts: %v", o.ExtMnt)
	}
	if _, err := restoreOptions([]string{"restore"}); err == nil {
		t.Error("no root file system, and no error")
	}
}

func TestCgroupRoots(t *testing.T) {
	groups, err := cgroupRoots(fromLXC)
	want := map[string]string{"name=systemd": "/lxc.payload.one", "freezer": "/lxc.payload.one",
		"hugetlb": "/init/lxc.payload.one"}
	if err != nil || len(groups) != len(want) {
		t.Fatalf("%v, %v", groups, err)
	}
	for name, path := range want {
		if groups[name] != path {
			t.Errorf("%s: %s, want %s", name, groups[name], path)
		}
	}
	if only, err := cgroupRoots([]string{"--cgroup-root=/lxc.payload.one"}); err != nil ||
		only[""] != "/lxc.payload.one" {
		t.Errorf("version 2 only: %v, %v", only, err)
	}
	const controllers = "cpuset,cpu,io,memory,hugetlb,pids,rdma,misc"
	six, err := cgroupRoots([]string{"--cgroup-root", controllers + ":lxc.payload.one"}) // LXC 6.0.4
	if err != nil || six[controllers] != "/lxc.payload.one" {
		t.Errorf("version 2 only, with controllers: %v, %v", six, err)
	}
	for _, wrong := range [][]string{nil, {"--cgroup-root", "freezer"}, {"--cgroup-root", "freezer:"},
		{"--cgroup-root", ""}} {
		if _, err := cgroupRoots(wrong); err == nil {
			t.Errorf("%q: no error", wrong)
		}
	}
}

func TestIsWrapper(t *testing.T) {
	if isWrapper(fromLXC) {
		t.Error("without its environment this is no wrapper")
	}
	t.Setenv(envWrapper, "/socket")
	if !isWrapper(fromLXC) || isWrapper([]string{"criu", "--version"}) || isWrapper([]string{"criu"}) {
		t.Error("restore is for the wrapper, and nothing else")
	}
}
