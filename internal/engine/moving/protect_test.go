package moving

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine/records"
	"github.com/godwit/godwit/internal/kernel"
)

// groupOf makes a group with one process in it, in the first hierarchy that can freeze.
func groupOf(t *testing.T) (*kernel.Cgroup, int) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"} {
		dir := filepath.Join(mount, fmt.Sprintf("godwit-test-protect-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		group, err := kernel.CgroupAt(dir)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0)
		}
		if err != nil {
			_ = os.Remove(dir)
			continue
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := errors.Join(group.Kill(ctx), group.Remove()); err != nil {
				t.Error(err)
			}
		})
		return group, cmd.Process.Pid
	}
	t.Fatal("no hierarchy of control groups can freeze")
	return nil, 0
}

// TestProtect: frozen processes are given to who holds them, and OOM killers take them later than before; afterwards they are what they were,
// also if an agent was killed over it and another one has begun again.
func TestProtect(t *testing.T) {
	group, pid := groupOf(t)
	path := filepath.Join(t.TempDir(), "spared.json")
	const before = 300
	if err := kernel.SetOOM(pid, before); err != nil {
		t.Fatal(err)
	}
	held := 0
	hold := func(pids []int) error { held += len(pids); return nil }
	if err := Protect(t.Context(), group, path, hold); err != nil || held != 0 || records.Exists(path) {
		t.Fatalf("%d processes that run are held, %v", held, err)
	}
	if _, err := group.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Protect(t.Context(), group, path, hold); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := kernel.ReadOOM(pid); err != nil || now > 0 || held != 2 {
		t.Errorf("protected, its adjustment is %d, %v; held %d times", now, err, held)
	}
	for range 2 {
		if err := Unprotect(path); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := kernel.ReadOOM(pid); err != nil || now != before || records.Exists(path) {
		t.Errorf("afterwards its adjustment is %d, %v", now, err)
	}
}
