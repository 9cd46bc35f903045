package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// newGroup makes a group in a hierarchy of version 1, which is mounted for the test if the machine has not
// mounted it.
func newGroup(t *testing.T, controller, name string) *Cgroup {
	t.Helper()
	mount := "/sys/fs/cgroup/" + controller
	if !exists(filepath.Join(mount, "cgroup.procs")) {
		mount = t.TempDir()
		if err := unix.Mount("cgroup", mount, "cgroup", 0, controller); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	}
	dir := filepath.Join(mount, fmt.Sprintf("godwit-inner-%d-%s", os.Getpid(), name))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = removeTree(dir) })
	return &Cgroup{dirs: []string{dir}, hierarchies: []string{controller}, freeze: freezer{dir: dir}}
}

// sleeping starts a process in a PID namespace of its own, in a group.
func sleeping(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	write(t, filepath.Join(dir, "cgroup.procs"), fmt.Sprint(cmd.Process.Pid))
}

func write(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// TestInnerGroups checks that a group with a quota, below a group with a quota, and with an owner, is the
// same when it is made again.
func TestInnerGroups(t *testing.T) {
	from, to := newGroup(t, "cpu", "from"), newGroup(t, "cpu", "to")
	inner := filepath.Join(from.dirs[0], "one")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{from.dirs[0], to.dirs[0]} {
		write(t, dir+"/cpu.cfs_quota_us", "100000")
	}
	write(t, inner+"/cpu.cfs_period_us", "1000000")
	write(t, inner+"/cpu.cfs_quota_us", "200000")
	for _, path := range []string{inner, inner + "/tasks", inner + "/cgroup.procs"} {
		if err := errors.Join(os.Chown(path, 1000, 1001), os.Chmod(path, 0o775)); err != nil {
			t.Fatal(err)
		}
	}
	sleeping(t, inner)
	sleeping(t, to.dirs[0])
	want, err := from.Inner()
	if err != nil || len(want) != 1 ||
		want[0].Groups[0].Owners["."] != (Owner{UID: 1000, GID: 1001, Mode: 0o775}) {
		t.Fatalf("%+v, %v", want, err)
	}
	for range 8 { // in any order
		write(t, to.dirs[0]+"/cgroup.procs", firstProcess(t, to))
		_ = os.Remove(filepath.Join(to.dirs[0], "one"))
		if err := errors.Join(to.MakeInner(want), to.FillInner(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := to.Inner(); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
	}
	write(t, inner+"/cpu.idle", "0")
	write(t, inner+"/cpu.cfs_burst_us", "1000")
	if _, err := from.Inner(); !errors.Is(err, kernel.ErrUnsupported) {
		t.Errorf("a setting that is not carried: %v", err)
	}
}

func firstProcess(t *testing.T, group *Cgroup) string {
	t.Helper()
	pids, err := group.Procs()
	if err != nil || len(pids) != 1 {
		t.Fatal(pids, err)
	}
	return fmt.Sprint(pids[0])
}

// TestInnerRefused checks that a frozen nested group, and threads of one process in several groups, are
// refused.
func TestInnerRefused(t *testing.T) {
	group := newGroup(t, "freezer", "frozen")
	inner := filepath.Join(group.dirs[0], "one")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	sleeping(t, inner)
	if _, err := group.Inner(); err != nil {
		t.Fatal(err)
	}
	write(t, inner+"/freezer.state", "FROZEN")
	if _, err := group.Inner(); !errors.Is(err, kernel.ErrUnsupported) {
		t.Errorf("a frozen group: %v", err)
	}
	write(t, inner+"/freezer.state", "THAWED")
	thread := newGroup(t, "pids", "threads")
	for _, name := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(thread.dirs[0], name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { write(t, filepath.Dir(thread.dirs[0])+"/cgroup.procs", fmt.Sprint(os.Getpid())) })
	write(t, thread.dirs[0]+"/one/cgroup.procs", fmt.Sprint(os.Getpid()))
	write(t, thread.dirs[0]+"/two/tasks", fmt.Sprint(os.Getpid()))
	if _, err := thread.Inner(); !errors.Is(err, kernel.ErrUnsupported) {
		t.Errorf("threads in several groups: %v", err)
	}
	if err := checkOwners(map[string]Owner{"release_agent": {}}); err == nil {
		t.Error("any file's owner is set")
	}
	if err := checkOwners(map[string]Owner{".": {Mode: os.ModeSetuid}}); err == nil {
		t.Error("any mode is set")
	}
}
