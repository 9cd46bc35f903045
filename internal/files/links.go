package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// linkStage keeps a name for every inode of a tree that is still to get further names, in a directory in the tree's
// root whose name nobody can guess. So an inode is found again by its number, with no path to walk and none to
// remember, however many there are.
type linkStage struct {
	open  bool
	root  int
	stage int
	name  string
	flags map[uint64]uint32 // of inodes that have any: they are set when there are no more names to come
}

// maxFlagged bounds the only thing about hard links that takes memory: immutable files with several names.
const maxFlagged = 1 << 20

func (l *linkStage) begin(openRoot func() (int, error)) error {
	if l.open {
		return nil
	}
	root, err := openRoot()
	if err != nil {
		return err
	}
	l.name = ".godwit-" + rand.Text()
	if err := unix.Mkdirat(root, l.name, 0o700); err != nil {
		unix.Close(root)
		return err
	}
	stage, err := openDirectory(root, l.name)
	if err != nil {
		unix.Close(root)
		return err
	}
	l.open, l.root, l.stage, l.flags = true, root, stage, make(map[uint64]uint32)
	return nil
}

// keep remembers an inode by its number.
func (l *linkStage) keep(openRoot func() (int, error), dirfd int, entry *Entry) error {
	if err := l.begin(openRoot); err != nil {
		return err
	}
	if entry.Flags != 0 {
		if len(l.flags) >= maxFlagged {
			return fmt.Errorf("more than %d immutable files have several names", maxFlagged)
		}
		l.flags[entry.Links] = entry.Flags
	}
	return unix.Linkat(dirfd, entry.Name, l.stage, number(entry.Links), 0)
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// give makes a further name of an inode. The last one takes the place of the name kept here, so that an inode never
// has more names than at its source, where it may have had as many as the file system allows.
func (l *linkStage) give(n uint64, dirfd int, name string, last bool) error {
	if !l.open {
		return fmt.Errorf("%w: a link to a file that did not come", ErrCorrupt)
	}
	var err error
	if last {
		err = unix.Renameat2(l.stage, number(n), dirfd, name, unix.RENAME_NOREPLACE)
	} else {
		err = unix.Linkat(l.stage, number(n), dirfd, name, 0)
	}
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: a link to a file that did not come", ErrCorrupt)
	}
	if err != nil || !last {
		return err
	}
	return l.flag(n, dirfd, name)
}

// flag sets the flags of an inode, now that it has all its names.
func (l *linkStage) flag(n uint64, dirfd int, name string) error {
	flags, ok := l.flags[n]
	if !ok {
		return nil
	}
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	delete(l.flags, n)
	return setInodeFlags(fd, flags)
}

// settle is called when the tree is complete. Inodes that are left have names outside of the tree at the source.
func (l *linkStage) settle() error {
	if !l.open {
		return nil
	}
	for n := range l.flags {
		if err := l.settleFlagged(n); err != nil {
			return err
		}
	}
	fd, err := openDirectory(l.root, l.name)
	if err != nil {
		return err
	}
	if err := emptyDirectory(fd); err != nil {
		return err
	}
	if err := unix.Unlinkat(l.root, l.name, unix.AT_REMOVEDIR); err != nil {
		return err
	}
	l.close()
	return nil
}

// settleFlagged removes the kept name before the flags forbid it.
func (l *linkStage) settleFlagged(n uint64) error {
	fd, err := unix.Openat(l.stage, number(n), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Unlinkat(l.stage, number(n), 0); err != nil {
		return err
	}
	return setInodeFlags(fd, l.flags[n])
}

func (l *linkStage) close() {
	if l.open {
		unix.Close(l.stage)
		unix.Close(l.root)
		l.open = false
	}
}
