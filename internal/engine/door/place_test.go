package door

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/mounts"
)

// TestCgroupName: names of cgroups as Docker, Podman and containerd tell them to a runtime, with either driver.
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

// TestDeleted: nothing is left of an arrival that its engine has deleted, before its agent is done with it or after that.
func TestDeleted(t *testing.T) {
	for _, early := range []bool{true, false} {
		place, err := At(t.TempDir(), "web")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(place.Images(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := place.Admit(Job{}); err != nil {
			t.Fatal(err)
		}
		steps := []func() error{
			place.Settle,
			func() error {
				code, err := place.deleted("/bin/true", nil)
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
			if err := step(); err != nil || exists(place.dir) != (i == 0) {
				t.Errorf("early: %v, after step %d: %v; it is there: %v", early, i+1, err, exists(place.dir))
			}
		}
	}
}

// TestRemoveForgets: with a place goes what a runc that was killed has left, and what was mounted there keeps its files.
func TestRemoveForgets(t *testing.T) {
	root := t.TempDir()
	place, err := At(root, "web")
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
	if err := os.MkdirAll(place.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(place.state(), []byte(stateOf(c)), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing
		if err := place.Remove(); err != nil {
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
