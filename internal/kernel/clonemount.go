package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// CloneMount opens the file system in memory that is mounted at a path of a process's mount namespace, without what is mounted
// below it. The path is free of symbolic links, or it is refused: the process may change what it leads through. What is opened is a
// mount of nobody's; it goes when the file is closed, and keeps the file system until then.
func CloneMount(pid int, path string) (*os.File, error) {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine, and nobody else gets into the namespace
		fd, err := cloneIn(int(namespace.Fd()), path)
		done <- result{fd, err}
	}()
	got := <-done
	if got.err != nil {
		return nil, fmt.Errorf("open what is mounted at %s of process %d: %w", path, pid, got.err)
	}
	return os.NewFile(uintptr(got.fd), path), nil
}

// cloneIn changes the calling thread's root directory and mount namespace.
func cloneIn(namespace int, path string) (int, error) {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return -1, err
	}
	if err := unix.Setns(namespace, unix.CLONE_NEWNS); err != nil {
		return -1, err
	}
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	var fs unix.Statfs_t
	var stat unix.Statx_t
	err = errors.Join(unix.Fstatfs(at, &fs), unix.Statx(at, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stat))
	if err == nil && (fs.Type != unix.TMPFS_MAGIC || stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0) {
		err = errors.New("it is no file system in memory")
	}
	if err != nil {
		return -1, err
	}
	return unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
}
