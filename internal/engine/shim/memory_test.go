package shim

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

// TestMemories: file systems that a container cannot write to, or that lie under another mount, do not
// count.
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

// TestMakeMemories: file systems are made as the runtime would, and the runtime is told to bind them.
func TestMakeMemories(t *testing.T) {
	dir := Dir{t.TempDir()}
	spec := &specs.Spec{Linux: &specs.Linux{}, Mounts: []specs.Mount{
		tmpfs("/dev", "nosuid", "strictatime", "mode=755", "size=65536k"),
		tmpfs("/scratch", "noexec", "size=1m", "rprivate"),
	}}
	for range 2 { // as when the runtime is called again
		again := *spec
		again.Mounts = slices.Clone(spec.Mounts)
		if err := dir.makeMemories(&again); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = mounts.UnmountBelow(dir.memories()) }) // already done if all is well
		for i, m := range again.Mounts[:2] {
			path, err := dir.Tmpfs(spec.Mounts[i].Destination)
			if err != nil || m.Type != "bind" || m.Source != path {
				t.Errorf("%+v, %v", m, err)
			}
		}
	}
	var fs unix.Statfs_t
	path, _ := dir.Tmpfs("/scratch") // looked at above
	if err := unix.Statfs(path, &fs); err != nil || fs.Blocks*uint64(fs.Bsize) != 1<<20 ||
		fs.Flags&unix.MS_NOEXEC == 0 || fs.Flags&unix.MS_NOSUID != 0 {
		t.Errorf("%+v, %v", fs, err)
	}
	if _, err := dir.Tmpfs("/other"); err == nil {
		t.Error("there is one that nobody has made")
	}
	if err := dir.Remove(); err != nil {
		t.Error(err)
	}
}

// TestCgroupRoot: it has the same entries as runc makes for hierarchies of several controllers, and is not
// writable.
func TestCgroupRoot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cgroup")
	hierarchies := []kernel.Mount{{Point: "/sys/fs/cgroup/cpu,cpuacct"}, {Point: "/sys/fs/cgroup/memory"},
		{Point: "/elsewhere/memory"}}
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

// TestMakeEarly: content that came before the runtime was called stays, in a file system with the runtime's
// options; unwanted content is removed.
func TestMakeEarly(t *testing.T) {
	dir := Dir{t.TempDir()}
	t.Cleanup(func() { _ = mounts.UnmountBelow(dir.memories()) }) // already done if all is well
	var early []string
	for _, name := range []string{"/scratch", "/scratch", "/unknown"} {
		dir, err := dir.MakeEarly(name)
		if err != nil {
			t.Fatal(err)
		}
		early = append(early, dir)
	}
	if early[0] != early[1] {
		t.Errorf("%q", early)
	}
	for _, dir := range early[1:] {
		if err := os.WriteFile(filepath.Join(dir, "came"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec := &specs.Spec{Linux: &specs.Linux{},
		Mounts: []specs.Mount{tmpfs("/scratch", "noexec", "mode=755", "size=1m"), tmpfs("/other")}}
	if err := dir.makeMemories(spec); err != nil {
		t.Fatal(err)
	}
	other, err := dir.Tmpfs("/other")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(other, "mount-point"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := dir.EmptyMemories(); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(early[0], &fs); err != nil || fs.Blocks*uint64(fs.Bsize) != 1<<20 ||
		fs.Flags&unix.MS_NOEXEC == 0 {
		t.Errorf("%+v, %v", fs, err)
	}
	for dir, want := range map[string]int{early[0]: 1, early[2]: 0, other: 0} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != want {
			t.Errorf("in %s: %v, %v", dir, left, err)
		}
	}
	if err := dir.Remove(); err != nil {
		t.Error(err)
	}
	for i := range maxEarly + 1 {
		if _, err = dir.MakeEarly(string(rune('a' + i))); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("there is no end of them")
	}
	if err := dir.Remove(); err != nil {
		t.Error(err)
	}
}
