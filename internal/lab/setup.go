package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// lockThread keeps the goroutine on its thread for good: the thread's namespaces are about to change.
func lockThread() { runtime.LockOSThread() }

// setupMachine turns fresh namespaces into a machine. It runs in them, as their first process.
func setupMachine(spec initSpec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Sethostname([]byte(spec.Machine)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	steps := []func(initSpec) error{mountState, mountSettings, mountRun, mountProc, mountSys, mountCgroups,
		mountIPC, setupNetwork}
	for _, step := range steps {
		if err := step(spec); err != nil {
			return err
		}
	}
	return nil
}

// mountState gives a node its own state directory.
func mountState(spec initSpec) error {
	if !spec.Node {
		return nil
	}
	own := nodeStatePath(spec.Lab, spec.Machine)
	if spec.StateSize > 0 {
		options := fmt.Sprintf("size=%d,mode=755", spec.StateSize)
		return mount("tmpfs", nodeStateDirectory, "tmpfs", 0, options)
	}
	return mount(own, nodeStateDirectory, "", unix.MS_BIND, "")
}

// mountRun makes /run, and for a node /tmp, private, with the lab's programs in it: the programs may lie in
// a directory that is about to be covered. A client keeps the machine's /tmp, so that it can run scripts in
// it.
func mountRun(spec initSpec) error {
	program, err := os.Open(spec.Program)
	if err != nil {
		return fmt.Errorf("godwit program: %w", err)
	}
	defer program.Close()
	helper, err := os.Open(spec.Helper)
	if err != nil {
		return fmt.Errorf("godwit-lab program: %w", err)
	}
	defer helper.Close()
	if err := replaceMount("/run", "tmpfs", "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"/run/lock", nodePrograms} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for at, file := range map[string]*os.File{nodeProgram: program, nodeHelper: helper} {
		if err := os.WriteFile(at, nil, 0o755); err != nil {
			return err
		}
		if err := mount(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), at, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if !spec.Node {
		return nil
	}
	return replaceMount("/tmp", "tmpfs", "mode=1777")
}

func mountProc(initSpec) error { return replaceMount("/proc", "proc", "") }
func mountSys(initSpec) error  { return replaceMount("/sys", "sysfs", "") }

func mountIPC(initSpec) error {
	if err := replaceMount("/dev/shm", "tmpfs", "mode=1777"); err != nil {
		return err
	}
	if !isDirectory("/dev/mqueue") {
		return nil
	}
	return replaceMount("/dev/mqueue", "mqueue", "")
}

// mountCgroups mounts the hierarchies at the machine's mount points; the cgroup namespace makes the node's
// own cgroup the root of each.
func mountCgroups(spec initSpec) error {
	const top = cgroupMount
	if !(len(spec.Mounted) == 1 && spec.Mounted[0].Mount == top) {
		if err := mount("tmpfs", top, "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
	}
	for _, h := range spec.Mounted {
		if err := os.MkdirAll(h.Mount, 0o755); err != nil {
			return err
		}
		kind := "cgroup"
		if h.V2 {
			kind = "cgroup2"
		}
		if err := mount("cgroup", h.Mount, kind, 0, h.Options); err != nil {
			return err
		}
		if err := linkControllers(h); err != nil {
			return err
		}
		if h.V2 {
			if err := moveToLeaf(h.Mount); err != nil {
				return err
			}
		}
	}
	return nil
}

// linkControllers makes links cpu and cpuacct to cpu,cpuacct, as distributions do.
func linkControllers(h hierarchy) error {
	base := filepath.Base(h.Mount)
	for _, name := range strings.Split(base, ",") {
		if name == base {
			continue
		}
		err := os.Symlink(base, filepath.Join(filepath.Dir(h.Mount), name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// moveToLeaf moves the node's first process out of the root of its cgroups, and gives the controllers to
// the cgroups below.
func moveToLeaf(root string) error {
	leaf := filepath.Join(root, initLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cgroup: %w", err)
	}
	if err := writeControl(filepath.Join(leaf, "cgroup.procs"), "0"); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	enableControllers(root)
	return nil
}

// setupNetwork turns the namespace into a router. The kernel's defaults of namespaces differ between
// machines, so setupNetwork sets every relevant value.
func setupNetwork(spec initSpec) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	forward := "0"
	if spec.Node {
		forward = "1"
	}
	settings := []struct{ name, value string }{
		{"ipv4/ip_forward", forward},
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		// of the links; no router advertisements between measured packets
		{"ipv6/conf/default/disable_ipv6", "1"},
	}
	for _, setting := range settings {
		err := writeControl(filepath.Join("/proc/sys/net", setting.name), setting.value)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return fmt.Errorf("sysctl: %w", err)
		}
	}
	return nil
}

// replaceMount removes all mounts at a path and below it, and mounts something new. Covering the old mounts
// would leave them in mountinfo, where runc and CRIU find them.
func replaceMount(point, kind, options string) error {
	mounts, err := kernel.OwnMounts()
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- { // the last mount comes off first
		if old := mounts[i].Point; old == point || strings.HasPrefix(old, point+"/") {
			err := unix.Unmount(old, unix.MNT_DETACH)
			// it went with another mount
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("unmount %s: %w", old, err)
			}
		}
	}
	return mount(kind, point, kind, unix.MS_NOSUID|unix.MS_NODEV, options)
}

func mount(source, point, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, point, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, point, err)
	}
	return nil
}
