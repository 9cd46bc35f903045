package copies

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// builder does what rounds say. All of it is relative to open directories, with single names.
type builder struct {
	ctx     context.Context
	trees   trees
	here    *mirrored // the tree that records are about
	number  uint64    // of the round
	at      position  // in that tree
	file    openFile
	nursery nursery
	used    files.Usage
	xattrs  *fsys.XattrReader
}

func (b *builder) Round(number uint64, _ records.RoundKind) error {
	if number <= b.number {
		return fmt.Errorf("%w: round %d comes after round %d", records.ErrCorrupt, number, b.number)
	}
	b.number = number
	return nil
}

func (b *builder) Tree(kind files.TreeKind, name string) error {
	if err := b.nursery.wait(); err != nil {
		return err
	}
	if b.here = b.trees.find(kind, name); b.here != nil {
		return b.open(b.here, false)
	}
	var err error
	if b.here, err = b.trees.start(kind, name); err != nil {
		return err
	}
	return b.open(b.here, true)
}

// open goes into the root of a tree.
func (b *builder) open(t *mirrored, made bool) error {
	fd, err := unix.Openat(t.root, ".", fsys.OpenDirectoryFlags, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", t.path, err)
	}
	return b.into(fd, "", made)
}

// into takes over an open directory.
func (b *builder) into(fd int, name string, made bool) error {
	if err := b.at.into(fd, name, made); err != nil {
		return b.failed("enter the directory", name, err)
	}
	return nil
}

func (b *builder) Directory(name string) error {
	if err := b.used.Names(1); err != nil {
		return err
	}
	if err := b.at.edit(func() error { return unix.Mkdirat(b.at.Fd(), name, 0o700) }); err != nil {
		return b.failed("make the directory", name, err)
	}
	fd, err := fsys.OpenDirectory(b.at.Fd(), name)
	if err != nil {
		return b.failed("open the directory", name, err)
	}
	if !b.at.spot().made {
		if err := purify(b.xattrs, fd); err != nil {
			unix.Close(fd)
			return b.failed("prepare the directory", name, err)
		}
	}
	return b.into(fd, name, true)
}

func (b *builder) Enter(name string) error {
	if err := b.nursery.wait(); err != nil { // it may be one that is not complete
		return err
	}
	fd, err := fsys.OpenDirectory(b.at.Fd(), name)
	if err != nil {
		return b.failed("enter the directory", name, absent(err))
	}
	return b.into(fd, name, false)
}

// absent says what it means that something is not there, or is something else: the sender believes
// that it is.
func absent(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: what it changes is not there: %w", records.ErrCorrupt, err)
	}
	return err
}

func (b *builder) Leave(entry *fsys.Entry) error {
	if d := b.at.spot().growing; d != nil && !heavy(entry) {
		d.entry = entry
		return b.at.ascend()
	}
	if err := b.nursery.wait(); err != nil { // this entry does not wait for what is made in the directory
		return err
	}
	exactly := !b.at.spot().made
	if exactly {
		fsys.Unlock(b.at.Fd())
	}
	if err := b.xattrs.SetOpen(b.at.Fd(), entry, exactly); err != nil {
		return b.failed("complete the directory", "", err)
	}
	return b.at.ascend()
}

// Up leaves a directory as if nothing had been done in it.
func (b *builder) Up() error {
	if err := b.at.asItWas(); err != nil {
		return b.failed("complete the directory", "", err)
	}
	return b.at.ascend()
}

// pause lets go of all but the roots and stages of the trees.
func (b *builder) pause() {
	b.file.close()
	b.at.close()
}

func (b *builder) close() {
	b.pause()
	b.trees.close()
}

// undo removes everything that was made.
func (b *builder) undo() error {
	b.close()
	return b.trees.undo()
}

func (b *builder) failed(what, name string, err error) error {
	path := "a tree"
	if b.here != nil {
		path = b.here.path
	}
	stored := int64(0)
	if b.file.entry != nil {
		stored = b.file.entry.Stored
	}
	return fmt.Errorf("%s %q in %s: %w", what, b.at.Path(name), path, space(path, stored, err))
}

// space says how much there is where there was not enough.
func space(path string, stored int64, err error) error {
	var known *files.NoSpaceError
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || errors.As(err, &known) {
		return err
	}
	return files.NoSpace(path, max(1, stored), err)
}
