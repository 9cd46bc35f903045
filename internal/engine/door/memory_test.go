package door

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/kernel"
)

func tmpfs(destination string, options ...string) specs.Mount {
	return specs.Mount{Destination: destination, Type: "tmpfs", Source: "tmpfs", Options: options}
}

// TestMemories: what a container cannot write to, and what lies under another mount, is not taken for one that it has.
func TestMemories(t *testing.T) {
	spec := &specs.Spec{Mounts: []specs.Mount{
		tmpfs("/dev/", "nosuid", "mode=755"), tmpfs("/ro", "ro"), tmpfs("relative"), tmpfs("/twice"),
		{Destination: "/twice", Type: "bind", Source: "/x"}, {Destination: "/proc", Type: "proc"},
	}}
	var found []string
	for _, m := range Memories(spec) {
		found = append(found, m.Destination)
	}
	if !slices.Equal(found, []string{"/dev"}) {
		t.Errorf("%q", found)
	}
}

// TestMakeMemories: they are made as their runtime would, and it is told to bind them.
func TestMakeMemories(t *testing.T) {
	place := Place{t.TempDir()}
	spec := &specs.Spec{Linux: &specs.Linux{}, Mounts: []specs.Mount{
		tmpfs("/dev", "nosuid", "strictatime", "mode=755", "size=65536k"), tmpfs("/scratch", "noexec", "size=1m", "rprivate"),
	}}
	for range 2 { // as when the runtime is called again
		again := *spec
		again.Mounts = slices.Clone(spec.Mounts)
		if err := place.makeMemories(&again); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = mounts.UnmountBelow(place.memories()) }) // already done if all is well
		for i, m := range again.Mounts[:2] {
			path, err := place.Tmpfs(spec.Mounts[i].Destination)
			if err != nil || m.Type != "bind" || m.Source != path {
				t.Errorf("%+v, %v", m, err)
			}
		}
	}
	var fs unix.Statfs_t
	path, _ := place.Tmpfs("/scratch") // looked at above
	if err := unix.Statfs(path, &fs); err != nil || fs.Blocks*uint64(fs.Bsize) != 1<<20 || fs.Flags&unix.MS_NOEXEC == 0 || fs.Flags&unix.MS_NOSUID != 0 {
		t.Errorf("%+v, %v", fs, err)
	}
	if _, err := place.Tmpfs("/other"); err == nil {
		t.Error("there is one that nobody has made")
	}
	if err := place.Remove(); err != nil {
		t.Error(err)
	}
}

// TestCgroupRoot: it has what runc makes for hierarchies of several controllers, and nobody can write to it.
func TestCgroupRoot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cgroup")
	hierarchies := []kernel.Mount{{Point: "/sys/fs/cgroup/cpu,cpuacct"}, {Point: "/sys/fs/cgroup/memory"}, {Point: "/elsewhere/memory"}}
	if err := makeCgroupRoot(dir, hierarchies); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if to, err := os.Readlink(filepath.Join(dir, "cpuacct")); err != nil || to != "cpu,cpuacct" {
		t.Errorf("%q, %v", to, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "more"), 0o755); err == nil {
		t.Error("it can be written to")
	}
}
