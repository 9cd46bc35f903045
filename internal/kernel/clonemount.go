package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// CloneMount opens the file system in memory that is mounted at a path of a process's mount namespace,
// without the mounts below it. It refuses a path with symbolic links, because the process may change them.
// The opened mount is in no namespace; it vanishes when the file is closed, and keeps the file system until
// then.
func CloneMount(pid int, path string) (*os.File, error) {
	fd := -1
	err := inMounts(pid, func() (err error) {
		fd, err = clone(path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open what is mounted at %s of process %d: %w", path, pid, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// inMounts calls f on a separate thread, in the mount namespace of a process.
func inMounts(pid int, f func() error) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer namespace.Close()
	done := make(chan error)
	go func() {
		// never unlocked: the thread ends with this goroutine, and no other goroutine gets into the
		// namespace
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// SealMounts makes the mounts at these paths of a process's mount namespace read-only. It ignores paths
// where nothing is mounted.
func SealMounts(pid int, paths []string) error {
	err := inMounts(pid, func() error {
		for _, path := range paths {
			if err := sealMount(path); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make mounts of process %d read-only: %w", pid, err)
	}
	return nil
}

func sealMount(path string) error {
	at, err := unix.Openat2(unix.AT_FDCWD, path,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var stat unix.Statx_t
	err = unix.Statx(at, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stat)
	if err != nil || stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return err
	}
	return unix.MountSetattr(at, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// clone is called in the mount namespace.
func clone(path string) (int, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY, Resolve: unix.RESOLVE_NO_SYMLINKS |
			unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	var fs unix.Statfs_t
	var stat unix.Statx_t
	err = errors.Join(unix.Fstatfs(at, &fs), unix.Statx(at, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stat))
	if err == nil && (fs.Type != unix.TMPFS_MAGIC || stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0) {
		err = errors.New("it is not a file system in memory")
	}
	if err != nil {
		return -1, err
	}
	return unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
}
