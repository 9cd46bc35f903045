package fsys

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// OpenTree opens a tree for reading, through a read-only mount of it that nobody else sees:
// reading links and directories then moves no access time, no device node in it can be opened, and
// what is mounted on top of its directories is not part of it. Where the kernel or the caller's
// rights do not allow that, the directory itself is opened, with O_NOATIME. The caller closes both
// descriptors; hold is -1 if there is none.
func OpenTree(path string) (root, hold int, err error) {
	hold, err = cloneReadOnly(path)
	if err != nil {
		root, err = unix.Open(path, OpenDirectoryFlags&^unix.O_NOFOLLOW, 0)
		return root, -1, err
	}
	root, err = unix.Openat(hold, ".", OpenDirectoryFlags, 0)
	if err != nil {
		unix.Close(hold)
		return -1, -1, err
	}
	return root, hold, nil
}

func cloneReadOnly(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, err
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOATIME | unix.MOUNT_ATTR_NODEV,
		Attr_clr: unix.MOUNT_ATTR__ATIME,
	})
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Describe makes an entry from what stat says.
func Describe(name string, stat *unix.Stat_t) Entry {
	entry := Entry{
		Name:     name,
		Mode:     stat.Mode,
		UID:      stat.Uid,
		GID:      stat.Gid,
		Accessed: Timestamp{Seconds: stat.Atim.Sec, Nanoseconds: uint32(stat.Atim.Nsec)},
		Modified: Timestamp{Seconds: stat.Mtim.Sec, Nanoseconds: uint32(stat.Mtim.Nsec)},
	}
	switch entry.Type() {
	case unix.S_IFREG:
		entry.Size, entry.Stored = stat.Size, stat.Blocks*512
	case unix.S_IFCHR, unix.S_IFBLK:
		entry.Device = stat.Rdev
	}
	return entry
}

// inodeFlags reads the flags that travel. File systems that have none say so in several ways.
func inodeFlags(fd int) (uint32, error) {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.ENOSYS):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read inode flags: %w", err)
	}
	return flags & PortableFlags, nil
}

// Complete adds what stat does not report about an open file or directory.
func (x *XattrReader) Complete(entry *Entry, fd int) (err error) {
	if entry.Xattrs, err = x.Read(Opened(fd)); err != nil {
		return err
	}
	entry.Flags, err = inodeFlags(fd)
	return err
}

// ReadLink returns the target of a symbolic link.
func ReadLink(dirfd int, name string) (string, error) {
	buffer := make([]byte, MaxTarget+1)
	n, err := unix.Readlinkat(dirfd, name, buffer)
	if err != nil {
		return "", fmt.Errorf("read the link: %w", err)
	}
	if n > MaxTarget {
		return "", fmt.Errorf("the link's target is longer than %d bytes", MaxTarget)
	}
	return string(buffer[:n]), nil
}
