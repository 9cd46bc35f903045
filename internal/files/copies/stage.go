package copies

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// stage is a directory in a tree's root with an unguessable name. It has a name, the number, for every
// inode that has several names, from the round in which it came to the last, and for everything that was
// taken from its place and has no other yet. So both are found without walking or remembering paths,
// however many there are.
type stage struct {
	open bool
	fd   int
	name string
	// full has the inodes with as many names as the file system allows, which cannot have another one here.
	full map[uint64]int
}

// stagePrefix begins a stage's name.
const stagePrefix = ".godwit-stage-"

// maxFull bounds how many descriptors are held for such inodes. (ext4 allows 65,000 names, others more.)
const maxFull = 256

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// staging returns the stage of the present tree, and makes it if necessary.
func (b *builder) staging() (*stage, error) {
	s := &b.here.stage
	if s.open {
		return s, nil
	}
	s.name = stagePrefix + rand.Text()
	b.at.spots[0].touched = true
	err := unix.Mkdirat(b.here.root, s.name, 0o700)
	if errors.Is(err, unix.EPERM) {
		b.at.spots[0].unlocked |= fsys.Unlock(b.here.root)
		err = unix.Mkdirat(b.here.root, s.name, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("make a directory for hard links: %w", err)
	}
	if s.fd, err = fsys.OpenDirectory(b.here.root, s.name); err != nil {
		return nil, err
	}
	s.open = true
	return s, purify(b.xattrs, s.fd)
}

func (s *stage) close() {
	if s.open {
		unix.Close(s.fd)
		s.open = false
	}
	for _, fd := range s.full {
		unix.Close(fd)
	}
	s.full = nil
}

// known registers an inode with several names by its number.
func (b *builder) known(entry *fsys.Entry) error {
	if entry.Links == 0 {
		return nil
	}
	s, err := b.staging()
	if err != nil {
		return err
	}
	dirfd := b.at.Fd()
	err = fsys.WithoutLocks(dirfd, entry.Name, func() error {
		return unix.Linkat(dirfd, entry.Name, s.fd, number(entry.Links), 0)
	})
	switch {
	case err == nil:
		return b.used.Names(1)
	case errors.Is(err, unix.EEXIST):
		return s.mustBe(entry.Links, dirfd, entry.Name)
	case errors.Is(err, unix.EMLINK):
		return s.hold(entry.Links, dirfd, entry.Name)
	}
	return err
}

// mustBe succeeds if a name belongs to the inode with this number.
func (s *stage) mustBe(n uint64, dirfd int, name string) error {
	var known, found unix.Stat_t
	if err := unix.Fstatat(s.fd, number(n), &known, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := unix.Fstatat(dirfd, name, &found, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if known.Ino != found.Ino || known.Dev != found.Dev {
		return fmt.Errorf("%w: two files have the number %d", records.ErrCorrupt, n)
	}
	return nil
}

// hold remembers an inode by a descriptor.
func (s *stage) hold(n uint64, dirfd int, name string) error {
	if _, known := s.full[n]; known {
		return nil
	}
	if len(s.full) >= maxFull {
		return fmt.Errorf("more than %d files have as many names as the file system allows", maxFull)
	}
	fd, err := fsys.OpenPath(dirfd, name)
	if err != nil {
		return err
	}
	if s.full == nil {
		s.full = make(map[uint64]int)
	}
	s.full[n] = fd
	return nil
}

func (b *builder) Link(name string, n uint64) error {
	s := &b.here.stage
	if !s.open {
		return b.failed("link", name, unknown(n))
	}
	if err := b.used.Names(1); err != nil {
		return err
	}
	err := b.at.edit(func() error { return s.give(n, b.at.Fd(), name) })
	if err != nil {
		return b.failed("link", name, err)
	}
	return nil
}

func unknown(n uint64) error {
	return fmt.Errorf("%w: no file has the number %d", records.ErrCorrupt, n)
}

// give makes another name of an inode. If the inode can have only one more, that replaces the name kept
// here.
func (s *stage) give(n uint64, dirfd int, name string) error {
	if fd, full := s.full[n]; full {
		again := func() error { return unix.Linkat(fd, "", dirfd, name, unix.AT_EMPTY_PATH) }
		err := again()
		if errors.Is(err, unix.EPERM) {
			err = fsys.ChangeUnlocked(fd, again, err)
		}
		return err
	}
	err := fsys.WithoutLocks(s.fd, number(n), func() error {
		return unix.Linkat(s.fd, number(n), dirfd, name, 0)
	})
	if errors.Is(err, unix.EMLINK) {
		if err = s.hold(n, s.fd, number(n)); err == nil {
			err = fsys.WithoutLocks(s.fd, number(n), func() error {
				return unix.Renameat2(s.fd, number(n), dirfd, name, unix.RENAME_NOREPLACE)
			})
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return unknown(n)
	}
	return err
}

func (b *builder) Park(name string, n uint64) error {
	s, err := b.staging()
	if err == nil {
		err = b.nursery.wait()
	}
	if err == nil {
		dirfd := b.at.Fd()
		err = b.at.edit(func() error {
			return fsys.WithoutLocks(dirfd, name, func() error {
				return unix.Renameat2(dirfd, name, s.fd, number(n), unix.RENAME_NOREPLACE)
			})
		})
		if errors.Is(err, unix.EEXIST) { // it already has this number: only the name must go
			if err = s.mustBe(n, dirfd, name); err == nil {
				return b.Remove(name)
			}
		}
	}
	if err != nil {
		return b.failed("move away", name, absent(err))
	}
	return nil
}

// unpark gives something parked a name.
func (b *builder) unpark(n uint64, name string) error {
	s := &b.here.stage
	if !s.open {
		return unknown(n)
	}
	err := b.at.edit(func() error {
		return fsys.WithoutLocks(s.fd, number(n), func() error {
			return unix.Renameat2(s.fd, number(n), b.at.Fd(), name, unix.RENAME_NOREPLACE)
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return unknown(n)
	}
	return absent(err)
}

func (b *builder) Place(n uint64, entry *fsys.Entry, content records.ContentKind) error {
	if entry.Links != 0 {
		if err := b.Link(entry.Name, n); err != nil {
			return err
		}
	} else if err := b.unpark(n, entry.Name); err != nil {
		return b.failed("move", entry.Name, err)
	}
	return b.Change(entry, content)
}

func (b *builder) PlaceDirectory(n uint64, name string) error {
	if err := b.unpark(n, name); err != nil {
		return b.failed("move", name, err)
	}
	return b.Enter(name)
}

func (b *builder) Forget(n uint64) error {
	s := &b.here.stage
	if fd, full := s.full[n]; full {
		unix.Close(fd)
		delete(s.full, n)
		return nil
	}
	if !s.open {
		return unknown(n)
	}
	if err := discard(&b.used, s.fd, number(n)); err != nil {
		return fmt.Errorf("forget the file with number %d in %s: %w", n, b.here.path, absent(err))
	}
	return nil
}
