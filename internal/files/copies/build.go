package copies

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// builder does what rounds say. All of it is relative to open directories, with single names.
type builder struct {
	ctx     context.Context
	where   Place
	trees   []*mirrored
	here    *mirrored // the tree that records are about
	number  uint64    // of the round
	way     fsys.Descent
	spots   []spot // of the directories on the way
	file    openFile
	nursery nursery
	used    files.Usage
	xattrs  *fsys.XattrReader
}

// mirrored is a tree that is made here.
type mirrored struct {
	kind  files.TreeKind
	name  string
	path  string
	made  bool        // by us; otherwise it was there, empty
	was   *fsys.Entry // what it had then; nil until it is changed
	root  int
	stage stage

	adopted bool // from an earlier copy
}

// spot is what is to be known about a directory while it is changed.
type spot struct {
	made     bool // in this pass: its attributes are still to come, and nothing is inherited from it
	touched  bool // its times are not any more those that it had
	unlocked uint32
	times    [2]unix.Timespec
	growing  *growing // if others make files in it
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
	b.here = nil
	for _, t := range b.trees {
		if t.kind == kind && t.name == name {
			b.here = t
			return b.open(t, false)
		}
	}
	t, err := b.start(kind, name)
	if err != nil {
		return err
	}
	return b.open(t, true)
}

// start begins a tree of which there is nothing.
func (b *builder) start(kind files.TreeKind, name string) (*mirrored, error) {
	path, err := b.where(kind, name)
	if err != nil {
		return nil, fmt.Errorf("tree %s %q: %w", kind, name, err)
	}
	if len(b.trees) >= fsys.MaxTrees {
		return nil, fmt.Errorf("%w: more than %d trees", records.ErrCorrupt, fsys.MaxTrees)
	}
	t := &mirrored{kind: kind, name: name, path: path, root: -1}
	if err := b.begin(t); err != nil {
		return nil, fmt.Errorf("prepare %s: %w", path, err)
	}
	return t, nil
}

func (b *builder) begin(t *mirrored) error {
	err := unix.Mkdir(t.path, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	t.made = err == nil
	if t.root, err = unix.Open(t.path, fsys.OpenDirectoryFlags, 0); err != nil {
		return err
	}
	if !t.made {
		if t.was, err = b.emptyDirectoryAsItIs(t.root); err != nil {
			unix.Close(t.root)
			return err
		}
	}
	b.trees, b.here = append(b.trees, t), t
	return b.purify(t.root)
}

// emptyDirectoryAsItIs tells what attributes an empty directory has.
func (b *builder) emptyDirectoryAsItIs(fd int) (*fsys.Entry, error) {
	if err := mustBeEmpty(fd); err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	entry := fsys.Describe("", &stat)
	return &entry, b.xattrs.Complete(&entry, fd)
}

func mustBeEmpty(fd int) error {
	l := fsys.Listing{Buffer: make([]byte, 1024)}
	name, _, err := l.Read(fd)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("it is not empty (it contains %q); only an empty directory can take a copy", name)
}

// purify takes from a directory what would be inherited by what is made in it: a default ACL, its
// group, flags.
func (b *builder) purify(fd int) error {
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return err
	}
	if err := b.xattrs.ExactXattrs(fsys.Opened(fd), nil); err != nil {
		return err
	}
	return fsys.ExactInodeFlags(fd, 0)
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
	s := spot{made: made}
	if !made {
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			unix.Close(fd)
			return b.failed("enter the directory", name, err)
		}
		s.times = [2]unix.Timespec{stat.Atim, stat.Mtim}
	}
	if err := b.way.Enter(fd, name); err != nil {
		return b.failed("enter the directory", name, err)
	}
	b.spots = append(b.spots, s)
	return nil
}

func (b *builder) spot() *spot { return &b.spots[len(b.spots)-1] }

// edit changes which names the present directory has. If the directory forbids that, it is unlocked
// until it is left.
func (b *builder) edit(change func() error) error {
	s := b.spot()
	s.touched = true
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	if unlocked := fsys.Unlock(b.way.Fd()); unlocked != 0 {
		s.unlocked |= unlocked
		err = change()
	}
	return err
}

func (b *builder) Directory(name string) error {
	if err := b.used.Names(1); err != nil {
		return err
	}
	if err := b.edit(func() error { return unix.Mkdirat(b.way.Fd(), name, 0o700) }); err != nil {
		return b.failed("make the directory", name, err)
	}
	fd, err := fsys.OpenDirectory(b.way.Fd(), name)
	if err != nil {
		return b.failed("open the directory", name, err)
	}
	if !b.spot().made {
		if err := b.purify(fd); err != nil {
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
	fd, err := fsys.OpenDirectory(b.way.Fd(), name)
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
	if d := b.spot().growing; d != nil && !heavy(entry) {
		d.entry = entry
		return b.ascend()
	}
	if err := b.nursery.wait(); err != nil { // this entry does not wait for what is made in the directory
		return err
	}
	exactly := !b.spot().made
	if exactly {
		fsys.Unlock(b.way.Fd())
	}
	if err := b.xattrs.SetOpen(b.way.Fd(), entry, exactly); err != nil {
		return b.failed("complete the directory", "", err)
	}
	return b.ascend()
}

// Up leaves a directory as if nothing had been done in it.
func (b *builder) Up() error {
	if s := b.spot(); s.touched && !s.made {
		if err := restore(b.way.Fd(), s.times, s.unlocked); err != nil {
			return b.failed("complete the directory", "", err)
		}
	}
	return b.ascend()
}

func restore(fd int, times [2]unix.Timespec, flags uint32) error {
	err := unix.UtimesNanoAt(fd, "", times[:], unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EPERM) { // names may be added to an append-only directory, but times not set
		flags |= fsys.Unlock(fd)
		err = unix.UtimesNanoAt(fd, "", times[:], unix.AT_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("set the times: %w", err)
	}
	return fsys.AddInodeFlags(fd, flags)
}

func (b *builder) ascend() error {
	err := b.spot().growing.done(false)
	b.spots = b.spots[:len(b.spots)-1]
	_, left := b.way.Leave()
	return errors.Join(err, left)
}

// pause lets go of all but the roots and stages of the trees.
func (b *builder) pause() {
	b.file.close()
	b.way.Close()
	for i := range b.spots {
		_ = b.spots[i].growing.done(true)
	}
	b.spots = b.spots[:0]
}

func (b *builder) close() {
	b.pause()
	for _, t := range b.trees {
		t.close()
	}
}

func (t *mirrored) close() {
	t.stage.close()
	if t.root >= 0 {
		unix.Close(t.root)
		t.root = -1
	}
}

// undo removes everything that was made.
func (b *builder) undo() error {
	b.close()
	var failed error
	for _, t := range b.trees {
		if err := b.removeTree(t); err != nil {
			failed = errors.Join(failed, fmt.Errorf("remove the incomplete %s: %w", t.path, err))
		}
	}
	b.trees = nil
	return failed
}

// removeTree removes a tree, or leaves its directory as it was found: empty, with the attributes that it had.
func (b *builder) removeTree(t *mirrored) error {
	if t.made {
		return files.RemoveTree(t.path)
	}
	if err := files.EmptyTree(t.path); err != nil {
		return err
	}
	fd, err := unix.Open(t.path, fsys.OpenDirectoryFlags, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return b.xattrs.SetOpen(fd, t.was, true)
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
	return fmt.Errorf("%s %q in %s: %w", what, b.way.Path(name), path, space(path, stored, err))
}

// space says how much there is where there was not enough.
func space(path string, stored int64, err error) error {
	var known *files.NoSpaceError
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || errors.As(err, &known) {
		return err
	}
	return files.NoSpace(path, max(1, stored), err)
}
