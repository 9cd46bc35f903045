package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// counting is a group with processes that append to a file as fast as they can; one of them is in a nested
// group.
type counting struct {
	*Cgroup
	file string
	pids []int
}

func newCounting(t *testing.T, mount string) *counting {
	t.Helper()
	dir := filepath.Join(mount, fmt.Sprintf("godwit-test-%d", os.Getpid()))
	for _, d := range []string{dir, dir + "/below"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	group, err := At(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := &counting{Cgroup: group, file: filepath.Join(t.TempDir(), "count")}
	t.Cleanup(func() { c.end(t) })
	for _, d := range []string{dir, dir + "/below"} {
		cmd := exec.Command("/bin/sh", "-c", "while :; do echo >>"+c.file+"; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		c.pids = append(c.pids, cmd.Process.Pid)
		if err := os.WriteFile(d+"/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *counting) end(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := errors.Join(c.Kill(ctx), c.Thaw(), c.Remove()); err != nil {
		t.Error(err)
	}
}

func (c *counting) size(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(c.file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// grows waits until the processes have written more.
func (c *counting) grows(t *testing.T) {
	t.Helper()
	until := time.Now().Add(10 * time.Second)
	for before := int64(-1); time.Now().Before(until); time.Sleep(time.Millisecond) {
		info, err := os.Stat(c.file)
		if err == nil && before >= 0 && info.Size() > before {
			return
		}
		if err == nil && before < 0 {
			before = info.Size()
		}
	}
	t.Fatal("the processes do not run")
}

func TestCgroup(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			c := newCounting(t, mount)
			pids, err := c.Procs()
			if err != nil || !slices.Equal(pids, sorted(c.pids)) {
				t.Fatalf("processes %v, %v, want %v", pids, err, c.pids)
			}
			for range 10 {
				c.freezeAndThaw(t)
			}
			if _, err := c.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := c.size(t)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := c.Kill(ctx); err != nil {
				t.Error(err)
			}
			if c.size(t) != before {
				t.Error("a frozen process ran on when it was killed")
			}
			if pids, err := c.Procs(); err != nil || len(pids) != 0 {
				t.Errorf("left: %v, %v", pids, err)
			}
			if frozen, err := c.Frozen(); err != nil || frozen {
				t.Errorf("what is empty is frozen: %v, %v", frozen, err)
			}
		})
	}
}

func sorted(pids []int) []int {
	slices.Sort(pids)
	return pids
}

func (c *counting) freezeAndThaw(t *testing.T) {
	t.Helper()
	c.grows(t)
	for range 2 { // freezing a frozen group is no error
		if _, err := c.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := c.size(t)
	frozen, err := c.Frozen()
	if err != nil || !frozen {
		t.Errorf("frozen: %v, %v", frozen, err)
	}
	time.Sleep(2 * time.Millisecond) // time in which a running process would write
	if c.size(t) != before {
		t.Error("a frozen process runs")
	}
	for range 2 {
		if err := c.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFreezeCancelled checks that a freeze that is given up thaws the group.
func TestFreezeCancelled(t *testing.T) {
	c := newCounting(t, kerneltest.Freezers(t)["version 2"])
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Freeze(ctx); err == nil {
		t.Log("it was frozen at the first look")
		if err := c.Thaw(); err != nil {
			t.Fatal(err)
		}
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("Freeze: %v, want that it was cancelled", err)
	}
	c.grows(t)
}

func TestCgroupOf(t *testing.T) {
	mount := kerneltest.Freezers(t)["version 2"]
	c := newCounting(t, mount)
	found, err := Of(c.pids[0])
	if err != nil {
		t.Fatal(err)
	}
	if found.FreezerDir() != c.FreezerDir() {
		t.Errorf("found %s, want %s", found.FreezerDir(), c.FreezerDir())
	}
	named, err := Open("/" + filepath.Base(c.FreezerDir()))
	if err != nil || named.FreezerDir() != c.FreezerDir() {
		t.Errorf("by name: %v, %v", named, err)
	}
}

// TestOwnCgroup checks that the caller's own group is refused: freezing it would stop the caller.
func TestOwnCgroup(t *testing.T) {
	if c, err := Of(os.Getpid()); err == nil {
		t.Errorf("found %v", c.Dirs())
	}
}

func TestOpenCgroup(t *testing.T) {
	if _, err := Open("/godwit-test-none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v, want %v", err, fs.ErrNotExist)
	}
	for _, bad := range []string{"", "/", "x", "/../x", "/a/../..", "/a/"} {
		if _, err := Open(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestGone checks that no call fails on a group that no longer exists.
func TestGone(t *testing.T) {
	dir := filepath.Join(kerneltest.Freezers(t)["version 2"], fmt.Sprintf("godwit-test-gone-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := At(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(c.Remove(), c.Thaw(), c.Kill(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

// TestFreezeVfork freezes a process that waits for its child to call execve, which the child never does,
// beside a nested group. Such a process is in an uninterruptible sleep and counts as frozen.
func TestFreezeVfork(t *testing.T) {
	program := filepath.Join(t.TempDir(), "vfork")
	gcc := exec.Command("gcc", "-x", "c", "-o", program, "-")
	gcc.Stdin = strings.NewReader("#include <unistd.h>\nint main(void) { char c; read(0, &c, 1); if " +
		"(!vfork()) for (;;) usleep(100); }\n")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			c := newCounting(t, mount)
			cmd := exec.Command(program)
			begin, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			if err := os.WriteFile(c.FreezerDir()+"/cgroup.procs", fmt.Append(nil, cmd.Process.Pid),
				0); err != nil {
				t.Fatal(err)
			}
			begin.Close()
			for range 3 {
				c.freezeAndThaw(t)
			}
		})
	}
}

func TestHasController(t *testing.T) {
	kerneltest.Freezers(t) // mounts them
	for name, want := range map[string]bool{"freezer": true, "no-such": false} {
		if has, err := kernel.HasController(name); err != nil || has != want {
			t.Errorf("%s: %v, %v; want %v", name, has, err, want)
		}
	}
}

// TestKilledWhileFrozen checks that a group is not left frozen after somebody else has killed its processes
// while they were frozen.
func TestKilledWhileFrozen(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			c := newCounting(t, mount)
			if _, err := c.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, pid := range c.pids {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for left := 1; left > 0 && version == "version 2"; { // in version 1 they end when they are thawed
				pids, err := c.Procs()
				if left = living(pids); err != nil || ctx.Err() != nil {
					t.Fatal(left, err, ctx.Err())
				}
			}
			if err := c.Kill(ctx); err != nil {
				t.Error(err)
			}
			if frozen, err := c.Frozen(); frozen || err != nil {
				t.Errorf("frozen: %v, %v", frozen, err)
			}
		})
	}
}
