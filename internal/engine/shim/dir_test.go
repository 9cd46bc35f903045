package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/mounts"
)

// TestCgroupName: names of cgroups as Docker, Podman and containerd pass them to a runtime, with either
// driver.
func TestCgroupName(t *testing.T) {
	for path, want := range map[string]string{
		"/docker/5f3a":                   "/docker/5f3a",
		"/libpod_parent/libpod-5f3a":     "/libpod_parent/libpod-5f3a",
		"default/web":                    "/default/web",
		"system.slice:docker:5f3a":       "/system.slice/docker-5f3a.scope",
		"machine.slice:libpod:5f3a":      "/machine.slice/libpod-5f3a.scope",
		":docker:5f3a":                   "/system.slice/docker-5f3a.scope",
		"-.slice:docker:5f3a":            "/docker-5f3a.scope",
		"tenant-red-blue.slice:docker:x": "/tenant.slice/tenant-red.slice/tenant-red-blue.slice/docker-x.scope",
		"a.slice::x":                     "/a.slice/x.scope",
		"/strange:name":                  "/strange:name",
	} {
		if got := cgroupName(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// TestDeleted: nothing is left of an arrival that its engine has deleted, whether before or after its agent
// is done with it.
func TestDeleted(t *testing.T) {
	for _, early := range []bool{true, false} {
		dir, err := At(t.TempDir(), "web")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir.Images(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := dir.Admit(Job{}); err != nil {
			t.Fatal(err)
		}
		steps := []func() error{
			dir.Settle,
			func() error {
				code, err := handler{dir}.deleted("/bin/true", nil)
				if code != 0 {
					t.Errorf("exit code %d", code)
				}
				return err
			},
		}
		if early {
			steps[0], steps[1] = steps[1], steps[0]
		}
		for i, step := range steps {
			if err := step(); err != nil || exists(dir.path) != (i == 0) {
				t.Errorf("early: %v, after step %d: %v; it is there: %v", early, i+1, err, exists(dir.path))
			}
		}
	}
}

// TestRemoveForgets: Remove also removes the leftovers of a killed runc, and a file system that was mounted
// there keeps its files.
func TestRemoveForgets(t *testing.T) {
	root := t.TempDir()
	dir, err := At(root, "web")
	if err != nil {
		t.Fatal(err)
	}
	c := parseCall([]string{"--root", filepath.Join(root, "states"), "create", "web"})
	mounted := filepath.Join(root, "states", "web", "criu-root")
	if err := mounts.Scratch(mounted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mounts.Unmount(mounted) })
	held, err := os.Create(filepath.Join(mounted, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := os.MkdirAll(dir.path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.state(), []byte(stateOf(c)), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing
		if err := dir.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(root, "states")); err != nil || len(left) > 0 {
		t.Errorf("it has left %v (%v)", left, err)
	}
	var kept unix.Stat_t
	if err := unix.Fstat(int(held.Fd()), &kept); err != nil || kept.Nlink != 1 {
		t.Errorf("a file of what was mounted is gone: %d names (%v)", kept.Nlink, err)
	}
}

// TestStateOfAnother: runc's state of a running container, or from before this one came, stays.
func TestStateOfAnother(t *testing.T) {
	root := t.TempDir()
	dir, err := At(root, "web")
	if err != nil {
		t.Fatal(err)
	}
	self, err := checkpoint.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	directory, running := filepath.Join(root, "states", "web"),
		fmt.Sprintf(`{"init_process_pid":%d,"init_process_start":%d}`, self.PID, self.StartTicks)
	for name, c := range map[string]struct {
		before, after string // the state, before this one's is noted, and after that
		stays         bool
	}{
		"there before":       {before: "{}", stays: true},
		"of one that runs":   {after: running, stays: true},
		"of one that is not": {after: `{"init_process_pid":1,"init_process_start":1}`},
		"cut off":            {after: `{"init_pro`},
	} {
		t.Run(name, func(t *testing.T) {
			keep := func(state string) {
				if err := errors.Join(os.MkdirAll(directory, 0o700),
					os.WriteFile(filepath.Join(directory, "state.json"), []byte(state), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.RemoveAll(directory), os.MkdirAll(dir.path, 0o700)); err != nil {
				t.Fatal(err)
			}
			if c.before != "" {
				keep(c.before)
			}
			if err := dir.noteState(directory); err != nil {
				t.Fatal(err)
			}
			if c.after != "" {
				keep(c.after)
			}
			if err := dir.Remove(); err != nil || exists(directory) != c.stays || exists(dir.path) {
				t.Errorf("state is there: %v, want %v; the restore directory: %v; %v", exists(directory),
					c.stays, exists(dir.path), err)
			}
		})
	}
}
