package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == kernel.SeizureCommand {
		os.Exit(kernel.SeizureMain(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// holdFor returns a function that has processes held by a keeper.
func holdFor(t *testing.T) func(pids []int) error {
	t.Helper()
	return func(pids []int) error {
		keeper, err := kernel.StartSeizure()
		if err != nil {
			return err
		}
		_, err = keeper.Hold(pids)
		return errors.Join(err, keeper.Close())
	}
}

// groupOf makes a cgroup with one process in it, in the first hierarchy that can freeze.
func groupOf(t *testing.T) (*cgroup.Cgroup, int) {
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
		group, err := cgroup.At(dir)
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

// TestProtect checks that frozen processes are passed to their holder, and that OOM killers take them later
// than before. Unprotect restores their settings, even if an agent was killed meanwhile and another has
// started again.
func TestProtect(t *testing.T) {
	group, pid := groupOf(t)
	path := filepath.Join(t.TempDir(), "spared.json")
	const before = 300
	if err := kernel.SetOOM(pid, before); err != nil {
		t.Fatal(err)
	}
	held := 0
	hold := func(pids []int) error { held += len(pids); return nil }
	if _, err := group.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Protect(t.Context(), group, path, hold, nil); err != nil {
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
	if now, err := kernel.ReadOOM(pid); err != nil || now != before || durable.Exists(path) {
		t.Errorf("afterwards its adjustment is %d, %v", now, err)
	}
}

// TestProtectTellsOOMD checks that systemd-oomd takes a protected group last, and that the group's
// attribute is restored afterwards. An attribute that somebody else has set stays.
func TestProtectTellsOOMD(t *testing.T) {
	const attribute = "user.oomd_avoid"
	for name, before := range map[string]string{"nothing": "", "to avoid it": "1", "not to avoid it": "0"} {
		t.Run(name, func(t *testing.T) {
			group, _ := groupOf(t)
			path, dir := filepath.Join(t.TempDir(), "spared.json"), group.FreezerDir()
			if _, err := os.Stat(filepath.Join(dir, "cgroup.freeze")); err != nil {
				t.Fatalf("this test needs control groups of version 2: %v", err)
			}
			told := func(when, want string) {
				t.Helper()
				value := make([]byte, 8)
				n, err := unix.Getxattr(dir, attribute, value)
				if errors.Is(err, unix.ENODATA) {
					n, err = 0, nil
				}
				if err != nil || string(value[:n]) != want {
					t.Errorf("%s systemd-oomd is told %q, %v; want %q", when, value[:max(n, 0)], err, want)
				}
			}
			protected := "1"
			if before != "" {
				protected = before
				if err := unix.Setxattr(dir, attribute, []byte(before), 0); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := group.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := Protect(t.Context(), group, path, func([]int) error { return nil },
					nil); err != nil {
					t.Fatal(err)
				}
				told("protected,", protected)
			}
			for range 2 {
				if err := Unprotect(path); err != nil {
					t.Fatal(err)
				}
				told("afterwards", before)
			}
		})
	}
}

// TestProtectThawed checks that processes that somebody thaws while nobody holds them count as having run.
// They are frozen again and held, and each call reports that they have run, until Unprotect. Processes that
// are thawed while they are held have not run.
func TestProtectThawed(t *testing.T) {
	hold := holdFor(t)
	fails := func([]int) error { return errors.New("no keeper") }
	for name, c := range map[string]struct {
		before bool // thawed before Protect
		hold   func(group *cgroup.Cgroup) func(pids []int) error
		held   bool
	}{
		"before":                  {true, func(*cgroup.Cgroup) func([]int) error { return hold }, true},
		"before, and no keeper":   {true, func(*cgroup.Cgroup) func([]int) error { return fails }, false},
		"just before it was held": {false, thawing(hold), true},
		"while no keeper starts":  {false, thawing(fails), false},
	} {
		t.Run(name, func(t *testing.T) {
			group, pid := groupOf(t)
			path := filepath.Join(t.TempDir(), "spared.json")
			if _, err := group.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.before {
				if err := group.Thaw(); err != nil {
					t.Fatal(err)
				}
			}
			if err := Protect(t.Context(), group, path, c.hold(group), nil); !errors.Is(err,
				engine.ErrThawed) {
				t.Errorf("it does not say that they have run: %v", err)
			}
			if frozen, err := group.Frozen(); err != nil || !frozen || kernel.Seized(pid) != c.held {
				t.Errorf("frozen again: %v, %v; held: %v", frozen, err, kernel.Seized(pid))
			}
			if err := Protect(t.Context(), group, path, hold, nil); !errors.Is(err, engine.ErrThawed) {
				t.Errorf("it is forgotten that they have run: %v", err)
			}
			if err := Unprotect(path); err != nil {
				t.Fatal(err)
			}
			none := func([]int) error { return errors.New("held again") }
			if err := errors.Join(group.Thaw(), Protect(t.Context(), group, path, none, nil)); err != nil {
				t.Errorf("thawed while they are held: %v", err)
			}
			if frozen, err := group.Frozen(); err != nil || !frozen {
				t.Errorf("it is not frozen again: %v", err)
			}
		})
	}
}

// thawing wraps hold so that the processes are thawed just before they are held.
func thawing(hold func([]int) error) func(*cgroup.Cgroup) func([]int) error {
	return func(group *cgroup.Cgroup) func([]int) error {
		return func(pids []int) error { return errors.Join(group.Thaw(), hold(pids)) }
	}
}

// TestProtectFails distinguishes a copy that is frozen but not held from a copy that is not known to be
// frozen.
func TestProtectFails(t *testing.T) {
	group, _ := groupOf(t)
	path := filepath.Join(t.TempDir(), "spared.json")
	if _, err := group.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	fails := func([]int) error { return errors.New("no keeper") }
	err := Protect(t.Context(), group, path, fails, nil)
	if !errors.Is(err, engine.ErrExposed) || errors.Is(err, engine.ErrThawed) {
		t.Errorf("frozen, and not held: %v", err)
	}
	if err := os.WriteFile(path, []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = Protect(t.Context(), group, path, fails, nil)
	if err == nil || errors.Is(err, engine.ErrExposed) {
		t.Errorf("nobody knows whether it has run: %v", err)
	}
}

// TestReleaseFreezesFirst checks that processes that somebody has thawed while they were held do not run
// when they are released: CRIU's changes in them are undone after that.
func TestReleaseFreezesFirst(t *testing.T) {
	group, pid := groupOf(t)
	if _, err := group.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(holdFor(t)([]int{pid}), group.Thaw()); err != nil {
		t.Fatal(err)
	}
	if err := release(t.Context(), group, []int{pid}); err != nil {
		t.Fatal(err)
	}
	if kernel.Seized(pid) {
		t.Error("it is still held")
	}
	if frozen, err := group.ToldToFreeze(); err != nil || !frozen {
		t.Errorf("it was released while it was not frozen: %v", err)
	}
	if err := Resume(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	if frozen, err := group.ToldToFreeze(); err != nil || frozen {
		t.Errorf("it is frozen after it was thawed: %v", err)
	}
}
