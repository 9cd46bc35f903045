package shared

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
)

// Local tells whether a file system is one of this kernel alone: what a process has written every
// other sees at once, on whichever "node" of this machine it is, and there is nothing to hand over.
// Numbers: include/uapi/linux/magic.h.
func Local(directory string) (bool, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(directory, &stat); err != nil {
		return false, err
	}
	switch int64(stat.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC,
		unix.RAMFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.SQUASHFS_MAGIC, unix.EROFS_SUPER_MAGIC_V1,
		unix.ISOFS_SUPER_MAGIC,
		unix.MSDOS_SUPER_MAGIC:
		return true, nil
	}
	return false, nil
}

// used lists the files of a file system that processes have open or mapped, by links below /proc,
// each file once.
func used(pids []int, device uint64) []string {
	var found []string
	seen := map[uint64]bool{}
	for _, pid := range pids {
		for _, kind := range []string{"fd", "map_files"} {
			directory := fmt.Sprintf("/proc/%d/%s", pid, kind)
			names, err := os.ReadDir(directory)
			if err != nil {
				continue // it has ended, and what it had was written back then
			}
			for _, name := range names {
				link := filepath.Join(directory, name.Name())
				inode, ok := regularOn(link, device)
				if ok && !seen[inode] {
					seen[inode] = true
					found = append(found, link)
				}
			}
		}
	}
	return found
}

// regularOn tells whether a link leads to a regular file of a file system, without asking a server,
// and which it is.
func regularOn(link string, device uint64) (inode uint64, ok bool) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO, &stat)
	if err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG ||
		unix.Mkdev(stat.Dev_major, stat.Dev_minor) != device {
		return 0, false
	}
	return stat.Ino, true
}

// flushers is how many files are written back at a time: each waits for the server.
const flushers = 16

// Release writes back what frozen processes have written to the file system of a directory, and
// forgets what is cached of their files: when it returns, the server has all of it, and nothing is
// written later.
//
// That the whole file system is synced is not enough: for FUSE the kernel does not wait there until
// the server has what was written by way of mappings (fs/fs-writeback.c, wait_sb_inodes), but for a
// file it does (fs/fuse/file.c, fuse_fsync).
func Release(ctx context.Context, directory string, pids []int) error {
	is, err := Local(directory)
	if err != nil || is {
		return err
	}
	dir, err := os.OpenFile(directory, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("write back %s: %w", directory, err)
	}
	defer dir.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return fmt.Errorf("write back %s: %w", directory, err)
	}
	if err := writeBackAll(ctx, used(pids, stat.Dev)); err != nil {
		return fmt.Errorf("write back %s: %w", directory, err)
	}
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("write back %s: %w", directory, err)
	}
	return nil
}

// writeBackAll writes files back, several at a time.
func writeBackAll(ctx context.Context, links []string) error {
	var all sync.WaitGroup
	failed := make([]error, len(links))
	room := make(chan struct{}, flushers)
	for i, link := range links {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			if failed[i] = ctx.Err(); failed[i] == nil {
				failed[i] = guard.Do(func() error { return writeBack(link) })
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// writeBack writes one file back and drops what is cached of it. A file that may not be read is
// written to only, and one that was removed cannot be opened by some servers: nobody else can see
// it.
func writeBack(link string) error {
	fd, err := unix.Open(link, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", link, err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return err
	}
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // advice
	return nil
}

// Take makes a node look anew at a directory that another node has written to: what it has cached
// of names and, where a file system keeps that after the last user has gone, of content is dropped.
// Files are looked at anew when they are opened, as network file systems promise (close-to-open,
// nfs(5)); this is for those that promise less.
func Take(directory string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(directory, &stat); err != nil {
		return fmt.Errorf("refresh %s: %w", directory, err)
	}
	if int64(stat.Type) != unix.FUSE_SUPER_MAGIC {
		return nil
	}
	point, err := mountPoint(directory)
	if err != nil {
		return fmt.Errorf("refresh %s: %w", directory, err)
	}
	// To reconfigure a file system, even to what it is, drops the names that nobody uses
	// (fs/super.c, reconfigure_super); FUSE keeps nothing of a file without a name
	// (fs/fuse/inode.c, generic_delete_inode).
	fd, err := unix.Fspick(unix.AT_FDCWD, point, unix.FSPICK_CLOEXEC)
	if err == nil {
		defer unix.Close(fd)
		err = unix.FsconfigReconfigure(fd)
	}
	if err != nil {
		return fmt.Errorf("refresh %s: reconfigure %s: %w", directory, point, err)
	}
	return nil
}

// mountPoint is where the mount begins that holds a directory.
func mountPoint(directory string) (string, error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, directory, 0, unix.STATX_MNT_ID, &stat); err != nil {
		return "", err
	}
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer file.Close()
	id := strconv.FormatUint(stat.Mnt_id, 10) + " "
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if mount, ok := kernel.ParseMount(lines.Text()); ok && strings.HasPrefix(lines.Text(), id) {
			return mount.Point, nil
		}
	}
	return "", fs.ErrNotExist
}

// Locked lists processes that hold locks on files of the file system that holds a directory, with
// what they have locked.
func Locked(directory string, pids []int) ([]string, error) {
	var stat unix.Stat_t
	if err := unix.Stat(directory, &stat); err != nil {
		return nil, fmt.Errorf("look for locks in %s: %w", directory, err)
	}
	var held []string
	for _, pid := range pids {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
		if err != nil {
			return nil, err
		}
		for _, info := range links {
			data, err := os.ReadFile(info)
			if err != nil || !strings.Contains(string(data), "\nlock:") {
				continue // closed meanwhile, or without locks
			}
			link := fmt.Sprintf("/proc/%d/fd/%s", pid, filepath.Base(info))
			if _, ok := regularOn(link, stat.Dev); ok {
				path, _ := os.Readlink(link) // for people
				held = append(held, path)
			}
		}
	}
	return held, nil
}
