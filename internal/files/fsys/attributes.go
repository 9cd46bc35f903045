package fsys

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// SetOpen gives an open file or directory its attributes; exactly means that it may have others,
// which it must lose. The order matters: a change of owner clears set-id bits and capabilities, an ACL
// changes the mode, and everything changes times or is forbidden by the flags. A file's flags come later
// (complete).
func (x *XattrReader) SetOpen(fd int, entry *Entry, exactly bool) error {
	if !exactly {
		return AttributesOfNew(fd, entry)
	}
	if err := unix.Fchown(fd, int(entry.UID), int(entry.GID)); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	if err := x.ExactXattrs(Opened(fd), entry.Xattrs); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, entry.Mode&0o7777); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	if err := setTimes(fd, entry); err != nil {
		return err
	}
	return ExactInodeFlags(fd, entry.Flags)
}

// AttributesOfNew does the same for something that was just created, without set-id bits: usually it has
// most of its attributes already, and reading them takes less time than setting them. (A file system need
// not use the requested owner or mode.)
func AttributesOfNew(fd int, entry *Entry) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Uid != entry.UID || stat.Gid != entry.GID {
		if err := unix.Fchown(fd, int(entry.UID), int(entry.GID)); err != nil {
			return fmt.Errorf("set the owner: %w", err)
		}
	}
	if err := setXattrs(Opened(fd), entry.Xattrs); err != nil {
		return err
	}
	if len(entry.Xattrs) > 0 || stat.Mode&0o7777 != entry.Mode&0o7777 {
		if err := unix.Fchmod(fd, entry.Mode&0o7777); err != nil {
			return fmt.Errorf("set the mode: %w", err)
		}
	}
	if err := setTimes(fd, entry); err != nil {
		return err
	}
	return AddInodeFlags(fd, entry.Flags)
}

func setTimes(fd int, entry *Entry) error {
	times := []unix.Timespec{entry.Accessed.Timespec(), entry.Modified.Timespec()}
	if err := unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("set the times: %w", err)
	}
	return nil
}

// SetNamed does the same for something that cannot be opened.
func (x *XattrReader) SetNamed(dirfd int, entry *Entry, exactly bool) error {
	if err := unix.Fchownat(dirfd, entry.Name, int(entry.UID), int(entry.GID),
		unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	if err := x.setXattrs(Named(dirfd, entry.Name), entry.Xattrs, exactly); err != nil {
		return err
	}
	if entry.Type() != unix.S_IFLNK { // whose mode is always 0777
		if err := setModeOfName(dirfd, entry); err != nil {
			return fmt.Errorf("set the mode: %w", err)
		}
	}
	times := []unix.Timespec{entry.Accessed.Timespec(), entry.Modified.Timespec()}
	if err := unix.UtimesNanoAt(dirfd, entry.Name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the times: %w", err)
	}
	return nil
}

// setModeOfName goes through an O_PATH descriptor, because fchmodat with AT_SYMLINK_NOFOLLOW needs Linux 6.6.
func setModeOfName(dirfd int, entry *Entry) error {
	fd, err := OpenPath(dirfd, entry.Name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod(FdPath(fd), entry.Mode&0o7777)
}

// Timespec returns the time as the kernel takes it.
func (t Timestamp) Timespec() unix.Timespec {
	return unix.Timespec{Sec: t.Seconds, Nsec: int64(t.Nanoseconds)}
}

func (x *XattrReader) setXattrs(n Node, attributes []Xattr, exactly bool) error {
	if exactly {
		return x.ExactXattrs(n, attributes)
	}
	return setXattrs(n, attributes)
}

// ExactXattrs gives a node these attributes and removes all others that travel.
func (x *XattrReader) ExactXattrs(n Node, wanted []Xattr) error {
	present, err := x.Read(n)
	if err != nil {
		return err
	}
	missing := wanted
	for _, has := range present {
		i := indexXattr(wanted, has.Name)
		switch {
		case i >= 0 && bytes.Equal(wanted[i].Value, has.Value):
			missing = withoutXattr(missing, has.Name)
		case i < 0 && !strings.HasPrefix(has.Name, "security.selinux"):
			// With SELinux, the label cannot be removed; it is replaced if the source has one.
			if err := n.Remove(has.Name); err != nil && !errors.Is(err, unix.ENODATA) {
				return fmt.Errorf("remove extended attribute %q: %w", has.Name, err)
			}
		}
	}
	return setXattrs(n, missing)
}

func indexXattr(list []Xattr, name string) int {
	for i := range list {
		if list[i].Name == name {
			return i
		}
	}
	return -1
}

func withoutXattr(list []Xattr, name string) []Xattr {
	var rest []Xattr
	for _, x := range list {
		if x.Name != name {
			rest = append(rest, x)
		}
	}
	return rest
}

// AddInodeFlags adds flags. A file system without flags is an error only if that would change what the
// container can do.
func AddInodeFlags(fd int, flags uint32) error {
	if flags == 0 {
		return nil
	}
	present, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	return setInodeFlags(fd, present, present|flags, err)
}

// ExactInodeFlags sets these flags among those that travel, and clears the others.
func ExactInodeFlags(fd int, flags uint32) error {
	present, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	return setInodeFlags(fd, present, present&^uint32(PortableFlags)|flags, err)
}

func setInodeFlags(fd int, present, wanted uint32, err error) error {
	if err == nil && present != wanted {
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(wanted))
	}
	if err != nil && wanted&lockingFlags != 0 {
		return fmt.Errorf("make it immutable or append-only: %w", err)
	}
	return nil
}

// Unlock removes the flags that forbid changes, and returns them. If it cannot, the following change fails
// with the reason.
func Unlock(fd int) uint32 {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || flags&lockingFlags == 0 {
		return 0
	}
	if unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^lockingFlags)) != nil {
		return 0
	}
	return flags & lockingFlags
}

// WithoutLocks makes a change to a name that flags of the file itself may forbid, and restores the flags
// afterwards.
func WithoutLocks(dirfd int, name string, change func() error) error {
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	path, openErr := OpenPath(dirfd, name)
	if openErr != nil {
		return err
	}
	defer unix.Close(path)
	return ChangeUnlocked(path, change, err)
}

// ChangeUnlocked repeats a failed change without the locks of what is held.
func ChangeUnlocked(path int, change func() error, err error) error {
	fd, openErr := openLockable(path)
	if openErr != nil {
		return err
	}
	defer unix.Close(fd)
	unlocked := Unlock(fd)
	if unlocked == 0 {
		return err
	}
	return errors.Join(change(), AddInodeFlags(fd, unlocked))
}

// openLockable opens something that can have flags: a regular file or a directory.
func openLockable(path int) (int, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(path, &stat); err != nil {
		return -1, err
	}
	if kind := stat.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return -1, unix.EINVAL
	}
	return unix.Open(FdPath(path), unix.O_RDONLY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
}

// OpenPath opens a name without opening the object itself: a device or a FIFO would notice that.
func OpenPath(dirfd int, name string) (int, error) {
	return unix.Openat(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// FdPath returns a path to an open file, whatever its names are now.
func FdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
