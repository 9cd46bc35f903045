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

// Local reports whether a file system belongs to this kernel alone: every process sees at once what another
// has written, on any "node" of this machine, and there is nothing to hand over. Numbers:
// include/uapi/linux/magic.h.
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
				continue // it has ended, and its data was written back then
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

// regularOn reports whether a link leads to a regular file of a file system, and to which one, without a
// query to a server.
func regularOn(link string, device uint64) (inode uint64, ok bool) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO, &stat)
	if err != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG ||
		unix.Mkdev(stat.Dev_major, stat.Dev_minor) != device {
		return 0, false
	}
	return stat.Ino, true
}

// flushers is how many files are written back at once: each waits for the server.
const flushers = 16

// Release writes back what frozen processes have written to the file system of a directory, and drops the
// cached contents of their files. When it returns, the server has everything, and nothing is written later.
//
// Syncing the whole file system is not enough: for FUSE the kernel does not wait there until the server has
// what was written through mappings (fs/fs-writeback.c, wait_sb_inodes), but for a single file it does
// (fs/fuse/file.c, fuse_fsync).
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

// writeBack writes one file back and drops its cached contents. It opens a file that may not be read for
// writing only. Some servers cannot open a removed file, but nobody else can see it.
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

// Take makes a node look again at a directory to which another node has written. It drops cached names and,
// where a file system keeps contents after the last user has gone, cached contents. Network file systems
// look again at a file when it is opened (close-to-open, nfs(5)); Take is for those that promise less.
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
	// Reconfiguring a file system, even without a change, drops unused names (fs/super.c,
	// reconfigure_super); FUSE keeps nothing of a file without a name (fs/fuse/inode.c,
	// generic_delete_inode).
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

// mountPoint returns the mount point of the mount that holds a directory.
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

// Locked lists processes that hold locks on files of a directory's file system, and the locked files.
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
				path, _ := os.Readlink(link) // for the message
				held = append(held, path)
			}
		}
	}
	return held, nil
}
