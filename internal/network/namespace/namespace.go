package namespace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Open opens a network namespace by path, or the calling thread's if the path is empty.
func Open(path string) (netns.NsHandle, error) {
	if path == "" {
		ns, err := netns.Get()
		if err != nil {
			return netns.None(), fmt.Errorf("open this thread's network namespace: %w", err)
		}
		return ns, nil
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return netns.None(), fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return ns, nil
}

// Within runs a function on a thread in the given network namespace. Files opened below /proc/sys/net, and
// /dev/net/tun, belong to the namespace in which the thread is at that moment.
func Within(ns netns.NsHandle, run func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open this thread's network namespace: %w", err)
			return
		}
		defer func() { _ = before.Close() }()
		if err := netns.Set(ns); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter network namespace %s: %w", ns, err)
			return
		}
		err = run()
		if netns.Set(before) == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with this goroutine and is not reused
		}
		done <- err
	}()
	return <-done
}

// Sysctl sets net.KEY in the calling thread's network namespace, unless it has the value already.
// The key is given as the path below /proc/sys/net.
func Sysctl(key, value string) error {
	path := filepath.Join("/proc/sys/net", key)
	now, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if strings.TrimSpace(string(now)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, value, err)
	}
	return nil
}

// DeviceSysctls prepares one of our devices on the node's side. The device forwards, speaks no IPv6, and
// does not check packets against the route back to their source (answers follow ingress marks, see the
// comment of package network). The kernel uses the greater of a device's rp_filter and that of "all"
// (Documentation/networking/ip-sysctl.rst), so on a node with strict filtering only the value 2, loose, can
// weaken it.
func DeviceSysctls(device string, more ...string) error {
	all, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/rp_filter")
	if err != nil {
		return fmt.Errorf("read the node's rp_filter: %w", err)
	}
	filter := 0
	if strings.TrimSpace(string(all)) == "1" {
		filter = 2
	}
	v4 := "ipv4/conf/" + device + "/"
	if err := Sysctl(v4+"rp_filter", strconv.Itoa(filter)); err != nil {
		return err
	}
	for _, key := range append(more, "forwarding") {
		if err := Sysctl(v4+key, "1"); err != nil {
			return err
		}
	}
	return DisableIPv6(device)
}

// DisableIPv6 keeps router solicitations and multicast reports off a device. A kernel without IPv6 sends
// none.
func DisableIPv6(device string) error {
	err := Sysctl("ipv6/conf/"+device+"/disable_ipv6", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Make makes a network namespace and keeps it by a mount at path. It leaves an existing namespace
// alone.
func Make(path string) error {
	if Is(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("make the mount point of a network namespace: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("make the mount point of a network namespace: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		// never unlocked: the thread ends in the new namespace, together with this goroutine
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			done <- fmt.Errorf("mount a network namespace at %s: %w", path, err)
			return
		}
		done <- nil
	}()
	if err := <-done; err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Remove undoes Make. The kernel keeps the namespace for as long as processes are in it.
func Remove(path string) error {
	for Is(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount network namespace %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the mount point of a network namespace: %w", err)
	}
	return nil
}

// Is distinguishes a mounted namespace from a mount point left by a crash.
func Is(path string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && stat.Type == unix.NSFS_MAGIC
}

// Bind keeps an existing network namespace by a mount at path.
func Bind(theirs, path string) error {
	if SameFile(path, theirs) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err == nil {
		err = file.Close()
	}
	if err == nil {
		err = unix.Mount(theirs, path, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("keep the network namespace %s: %w", theirs, err)
	}
	return nil
}

// SameFile reports whether two paths lead to the same file, such as a network namespace.
func SameFile(a, b string) bool {
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(one, other)
}
