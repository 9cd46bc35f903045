package copies

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// spaceCheck is the minimum size for checking whether a file fits before it is written.
const spaceCheck = 1 << 20

func (b *builder) Other(entry *fsys.Entry) error {
	if err := b.here.permits(entry); err != nil {
		return b.failed("make", entry.Name, err)
	}
	if err := b.used.Names(1); err != nil {
		return err
	}
	dirfd := b.at.Fd()
	switch entry.Type() {
	case unix.S_IFREG:
		if collects(&b.at, entry) {
			if err := b.at.grow(b.here.path); err != nil {
				return b.failed("create", entry.Name, err)
			}
			return b.nursery.collect(entry)
		}
		return b.create(dirfd, entry)
	case unix.S_IFLNK:
		if err := b.at.edit(func() error {
			return unix.Symlinkat(entry.Target, dirfd,
				entry.Name)
		}); err != nil {
			return b.failed("make the symbolic link", entry.Name, err)
		}
	default:
		err := b.at.edit(func() error {
			return unix.Mknodat(dirfd, entry.Name, entry.Type()|
				0o600, int(entry.Device))
		})
		if err != nil {
			return b.failed("make the special file", entry.Name, err)
		}
	}
	return b.completeName(entry, !b.at.spot().made)
}

func (b *builder) completeName(entry *fsys.Entry, exactly bool) error {
	err := b.xattrs.SetNamed(b.at.Fd(), entry, exactly)
	if err == nil {
		err = b.known(entry)
	}
	if err != nil {
		return b.failed("complete", entry.Name, err)
	}
	return nil
}

func (b *builder) create(dirfd int, entry *fsys.Entry) error {
	if entry.Stored >= spaceCheck {
		if err := files.CheckSpaceAt(dirfd, b.here.path, entry.Stored); err != nil {
			return b.failed("create", entry.Name, err)
		}
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd := -1
	err := b.at.edit(func() (err error) {
		fd, err = unix.Openat(dirfd, entry.Name, flags, 0o600)
		return err
	})
	if err != nil {
		return b.failed("create", entry.Name, err)
	}
	b.file = openFile{fd: fd, old: -1, entry: entry, fresh: true, used: &b.used, ended: b.ctx.Err}
	return nil
}

// Change changes something that exists under a name.
func (b *builder) Change(entry *fsys.Entry, content records.ContentKind) error {
	if err := b.nursery.wait(); err != nil {
		return err
	}
	path, err := fsys.OpenPath(b.at.Fd(), entry.Name)
	if err != nil {
		return b.failed("change", entry.Name, absent(err))
	}
	defer unix.Close(path)
	var stat unix.Stat_t
	if err := unix.Fstat(path, &stat); err != nil {
		return b.failed("change", entry.Name, err)
	}
	if err := matches(path, entry, &stat); err != nil {
		return b.failed("change", entry.Name, err)
	}
	if entry.Type() != unix.S_IFREG {
		return b.completeName(entry, true)
	}
	return b.reopen(path, &stat, entry, content)
}

// matches reports whether something can become what an entry says by a change of attributes and content
// alone.
func matches(path int, entry *fsys.Entry, stat *unix.Stat_t) error {
	is := fsys.Describe(entry.Name, stat)
	if is.Type() == unix.S_IFLNK {
		var err error
		if is.Target, err = fsys.ReadLink(path, ""); err != nil {
			return err
		}
	}
	if is.Type() != entry.Type() || is.Device != entry.Device && is.Type() != unix.S_IFREG ||
		is.Target != entry.Target {
		return fmt.Errorf("%w: something else is there", records.ErrCorrupt)
	}
	return nil
}

// reopen opens a regular file to be changed; its content follows, unless it stays.
func (b *builder) reopen(path int, stat *unix.Stat_t, entry *fsys.Entry, content records.ContentKind) error {
	fd, err := openUnlocked(path, content != records.KeepContent)
	if err != nil {
		return b.failed("open", entry.Name, err)
	}
	b.file = openFile{fd: fd, old: -1, entry: entry, size: stat.Size, before: files.Occupied(stat),
		used: &b.used, ended: b.ctx.Err}
	switch content {
	case records.KeepContent:
		if entry.Size != stat.Size {
			return b.failed("change", entry.Name,
				fmt.Errorf("%w: it has %d bytes, not %d", records.ErrCorrupt, stat.Size, entry.Size))
		}
		return b.complete()
	case records.WithCopies:
		var s *stage
		if s, err = b.staging(); err == nil {
			err = b.file.makeBeside(s, stat)
		}
	default:
		err = b.file.shorten()
	}
	if err != nil {
		return b.failed("change", entry.Name, err)
	}
	return nil
}

// openUnlocked opens a held regular file, and removes flags that forbid changes.
func openUnlocked(path int, writable bool) (int, error) {
	mode := unix.O_RDONLY
	if writable {
		mode = unix.O_RDWR
	}
	const flags = unix.O_NOATIME | unix.O_CLOEXEC
	fd, err := unix.Open(fsys.FdPath(path), mode|flags, 0)
	if err == nil {
		fsys.Unlock(fd) // opened for reading, an append-only or immutable file
		return fd, nil
	}
	if !errors.Is(err, unix.EPERM) {
		return -1, err
	}
	locked, openErr := unix.Open(fsys.FdPath(path), unix.O_RDONLY|flags, 0)
	if openErr != nil {
		return -1, err
	}
	defer unix.Close(locked)
	fsys.Unlock(locked)
	return unix.Open(fsys.FdPath(path), mode|flags, 0)
}

// discard removes a name in an open directory; if it is a directory, with its contents.
func discard(used *files.Usage, dirfd int, name string) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	flags := 0
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		fd, err := fsys.OpenDirectory(dirfd, name)
		if err != nil {
			return err
		}
		fsys.Unlock(fd)
		if err := files.EmptyDirectory(fd, used); err != nil {
			return err
		}
		flags = unix.AT_REMOVEDIR
	}
	err := fsys.WithoutLocks(dirfd, name, func() error { return unix.Unlinkat(dirfd, name, flags) })
	if err == nil {
		used.Gone(&stat)
	}
	return err
}

func (b *builder) Remove(name string) error {
	if err := b.nursery.wait(); err != nil {
		return err
	}
	if err := b.at.edit(func() error { return discard(&b.used, b.at.Fd(), name) }); err != nil {
		return b.failed("remove", name, absent(err))
	}
	return nil
}
