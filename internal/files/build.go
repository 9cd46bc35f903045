package files

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// target is a directory that was filled, or begun.
type target struct {
	path string
	made bool // by us; otherwise it was there, empty
}

// builder makes trees as a stream says. All it does is relative to open directories, with single names.
type builder struct {
	place   Place
	targets []target
	way     descent
	links   linkStage
	file    openFile
}

// openFile is the regular file whose content is being received; fd is meaningful while entry is not nil.
type openFile struct {
	fd    int
	entry *Entry
}

func (b *builder) close() {
	if b.file.entry != nil {
		unix.Close(b.file.fd)
		b.file.entry = nil
	}
	b.links.close()
	b.way.close()
}

// undo removes everything that was made.
func (b *builder) undo() error {
	b.close()
	var failed error
	for _, t := range b.targets {
		if err := clearTarget(t); err != nil {
			failed = errors.Join(failed, fmt.Errorf("remove the incomplete %s: %w", t.path, err))
		}
	}
	b.targets = nil
	return failed
}

func clearTarget(t target) error {
	if t.made {
		return RemoveTree(t.path)
	}
	fd, err := unix.Open(t.path, openDirectoryFlags, 0)
	if err != nil {
		return err
	}
	return emptyDirectory(fd)
}

func (b *builder) tree(kind TreeKind, name string) error {
	path, err := b.place(kind, name)
	if err != nil {
		return fmt.Errorf("tree %s %q: %w", kind, name, err)
	}
	fd, err := b.openTarget(path)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", path, err)
	}
	b.links = linkStage{}
	return b.way.enter(fd, "")
}

func (b *builder) openTarget(path string) (int, error) {
	err := unix.Mkdir(path, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	made := err == nil
	fd, err := unix.Open(path, openDirectoryFlags, 0)
	if err != nil {
		return -1, err
	}
	if !made {
		if err := mustBeEmpty(fd); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	b.targets = append(b.targets, target{path: path, made: made})
	if err := clearXattrs(opened(fd)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func mustBeEmpty(fd int) error {
	l := listing{buffer: make([]byte, 1024)}
	name, _, err := l.read(fd)
	if errors.Is(err, io.EOF) {
		_, err = unix.Seek(fd, 0, io.SeekStart)
		return err
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("it is not empty (it contains %q); only an empty directory can take a copy", name)
}

func (b *builder) directory(name string) error {
	if err := unix.Mkdirat(b.way.fd(), name, 0o700); err != nil {
		return b.failed("make the directory", name, err)
	}
	fd, err := openDirectory(b.way.fd(), name)
	if err != nil {
		return b.failed("open the directory", name, err)
	}
	if err := b.way.enter(fd, name); err != nil {
		return b.failed("enter the directory", name, err)
	}
	return nil
}

func (b *builder) leave(entry *Entry) error {
	if b.way.depth() == 1 {
		if err := b.links.settle(); err != nil {
			return fmt.Errorf("complete the hard links: %w", err)
		}
	}
	if err := attributesOfOpen(b.way.fd(), entry); err != nil {
		return b.failed("complete the directory", "", err)
	}
	_, err := b.way.leave()
	return err
}

// attributesOfOpen gives an open file or directory its attributes. The order matters: a change of owner clears set-id
// bits and capabilities, an ACL changes the mode, everything changes times or is forbidden by the flags.
func attributesOfOpen(fd int, entry *Entry) error {
	if err := unix.Fchown(fd, int(entry.UID), int(entry.GID)); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	if err := setXattrs(opened(fd), entry.Xattrs); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, entry.Mode&0o7777); err != nil {
		return fmt.Errorf("set the mode: %w", err)
	}
	if entry.Type() == unix.S_IFDIR {
		if err := setTimes(fd, ".", entry, 0); err != nil {
			return err
		}
		return setInodeFlags(fd, entry.Flags)
	}
	return nil
}

func setTimes(dirfd int, name string, entry *Entry, flags int) error {
	times := []unix.Timespec{entry.Accessed.timespec(), entry.Modified.timespec()}
	if err := unix.UtimesNanoAt(dirfd, name, times, flags); err != nil {
		return fmt.Errorf("set the times: %w", err)
	}
	return nil
}

func (t Timestamp) timespec() unix.Timespec {
	return unix.Timespec{Sec: t.Seconds, Nsec: int64(t.Nanoseconds)}
}

// setInodeFlags adds flags. A file system that has none is an error only where it would change what the container
// can do.
func setInodeFlags(fd int, flags uint32) error {
	if flags == 0 {
		return nil
	}
	present, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(present|flags))
	}
	if err != nil && flags&lockingFlags != 0 {
		return fmt.Errorf("make it immutable or append-only: %w", err)
	}
	return nil
}

func (b *builder) other(entry *Entry) error {
	dirfd := b.way.fd()
	switch entry.Type() {
	case unix.S_IFREG:
		return b.create(dirfd, entry)
	case unix.S_IFLNK:
		if err := unix.Symlinkat(entry.Target, dirfd, entry.Name); err != nil {
			return b.failed("make the symbolic link", entry.Name, err)
		}
	default:
		if err := unix.Mknodat(dirfd, entry.Name, entry.Type()|0o600, int(entry.Device)); err != nil {
			return b.failed("make the special file", entry.Name, err)
		}
	}
	if err := attributesOfName(dirfd, entry); err != nil {
		return b.failed("complete", entry.Name, err)
	}
	return b.stage(entry)
}

// attributesOfName does for what cannot be opened what attributesOfOpen does for the rest.
func attributesOfName(dirfd int, entry *Entry) error {
	if err := unix.Fchownat(dirfd, entry.Name, int(entry.UID), int(entry.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	if len(entry.Xattrs) > 0 {
		if err := setXattrs(named(dirfd, entry.Name), entry.Xattrs); err != nil {
			return err
		}
	}
	if entry.Type() != unix.S_IFLNK { // whose mode is always 0777
		if err := setModeOfName(dirfd, entry); err != nil {
			return fmt.Errorf("set the mode: %w", err)
		}
	}
	return setTimes(dirfd, entry.Name, entry, unix.AT_SYMLINK_NOFOLLOW)
}

// setModeOfName goes through an O_PATH descriptor, because fchmodat with AT_SYMLINK_NOFOLLOW needs Linux 6.6.
func setModeOfName(dirfd int, entry *Entry) error {
	fd, err := unix.Openat(dirfd, entry.Name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), entry.Mode&0o7777)
}

// spaceCheck is the size from which on it is worth asking whether a file fits before it is written.
const spaceCheck = 1 << 20

func (b *builder) create(dirfd int, entry *Entry) error {
	if entry.Stored >= spaceCheck {
		if err := checkSpace(dirfd, b.target(), entry.Stored); err != nil {
			return b.failed("create", entry.Name, err)
		}
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dirfd, entry.Name, flags, 0o600)
	if err != nil {
		return b.failed("create", entry.Name, err)
	}
	b.file = openFile{fd: fd, entry: entry}
	if entry.Size > 0 {
		if err := unix.Ftruncate(fd, entry.Size); err != nil {
			return b.failed("set the size of", entry.Name, err)
		}
	}
	return nil
}

func (b *builder) data(offset int64, piece []byte) error {
	for len(piece) > 0 {
		n, err := unix.Pwrite(b.file.fd, piece, offset)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return b.failed("write", b.file.entry.Name, b.space(err))
		}
		piece, offset = piece[n:], offset+int64(n)
	}
	return nil
}

func (b *builder) done() error {
	fd, entry := b.file.fd, b.file.entry
	defer unix.Close(fd)
	b.file.entry = nil
	err := attributesOfOpen(fd, entry)
	if err == nil {
		err = setTimes(b.way.fd(), entry.Name, entry, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil && entry.Links == 0 {
		err = setInodeFlags(fd, entry.Flags)
	}
	if err != nil {
		return b.failed("complete", entry.Name, b.space(err))
	}
	return b.stage(entry)
}

// stage keeps hold of an inode that will get further names.
func (b *builder) stage(entry *Entry) error {
	if entry.Links == 0 {
		return nil
	}
	if err := b.links.keep(b.root(), b.way.fd(), entry); err != nil {
		return b.failed("keep", entry.Name, err)
	}
	return nil
}

func (b *builder) link(name string, number uint64, last bool) error {
	if err := b.links.give(number, b.way.fd(), name, last); err != nil {
		return b.failed("link", name, err)
	}
	return nil
}

func (b *builder) target() string { return b.targets[len(b.targets)-1].path }

// root opens the present tree's directory again: the way to it may have been closed.
func (b *builder) root() func() (int, error) {
	return func() (int, error) { return unix.Open(b.target(), openDirectoryFlags, 0) }
}

func (b *builder) failed(what, name string, err error) error {
	return fmt.Errorf("%s %q in %s: %w", what, b.way.path(name), b.target(), b.space(err))
}

// space says how much there is where there was not enough.
func (b *builder) space(err error) error {
	var known *NoSpaceError
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || errors.As(err, &known) {
		return err
	}
	needed := int64(1)
	if b.file.entry != nil {
		needed = max(needed, b.file.entry.Stored)
	}
	return noSpace(b.target(), needed, err)
}
