package copies

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// trees are the trees that are made here.
type trees struct {
	where  Place
	xattrs *fsys.XattrReader
	all    []*mirrored
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

// find returns a tree that was started; nil: it was not.
func (t *trees) find(kind files.TreeKind, name string) *mirrored {
	for _, one := range t.all {
		if one.kind == kind && one.name == name {
			return one
		}
	}
	return nil
}

// start begins a tree of which there is nothing.
func (t *trees) start(kind files.TreeKind, name string) (*mirrored, error) {
	path, err := t.where(kind, name)
	if err != nil {
		return nil, fmt.Errorf("tree %s %q: %w", kind, name, err)
	}
	if len(t.all) >= fsys.MaxTrees {
		return nil, fmt.Errorf("%w: more than %d trees", records.ErrCorrupt, fsys.MaxTrees)
	}
	one := &mirrored{kind: kind, name: name, path: path, root: -1}
	if err := t.begin(one); err != nil {
		return nil, fmt.Errorf("prepare %s: %w", path, err)
	}
	return one, nil
}

func (t *trees) begin(one *mirrored) error {
	err := unix.Mkdir(one.path, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	one.made = err == nil
	if one.root, err = unix.Open(one.path, fsys.OpenDirectoryFlags, 0); err != nil {
		return err
	}
	if !one.made {
		if one.was, err = emptyDirectoryAsItIs(t.xattrs, one.root); err != nil {
			unix.Close(one.root)
			return err
		}
	}
	t.all = append(t.all, one)
	return purify(t.xattrs, one.root)
}

// emptyDirectoryAsItIs tells what attributes an empty directory has.
func emptyDirectoryAsItIs(xattrs *fsys.XattrReader, fd int) (*fsys.Entry, error) {
	if err := mustBeEmpty(fd); err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	entry := fsys.Describe("", &stat)
	return &entry, xattrs.Complete(&entry, fd)
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
func purify(xattrs *fsys.XattrReader, fd int) error {
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return err
	}
	if err := xattrs.ExactXattrs(fsys.Opened(fd), nil); err != nil {
		return err
	}
	return fsys.ExactInodeFlags(fd, 0)
}

// settle is called when all trees are complete. Inodes left on a stage have all their names, or were to be
// removed.
func (t *trees) settle(used *files.Usage) error {
	for _, one := range t.all {
		if err := one.clear(used); err != nil {
			return fmt.Errorf("complete the hard links in %s: %w", one.path, err)
		}
	}
	return nil
}

// close lets go of the roots and stages of the trees.
func (t *trees) close() {
	for _, one := range t.all {
		one.close()
	}
}

// undo removes everything that was made.
func (t *trees) undo() error {
	var failed error
	for _, one := range t.all {
		if err := one.remove(t.xattrs); err != nil {
			failed = errors.Join(failed, fmt.Errorf("remove the incomplete %s: %w", one.path, err))
		}
	}
	t.all = nil
	return failed
}

// clear removes the stage, with all names in it.
func (t *mirrored) clear(used *files.Usage) error {
	if !t.stage.open {
		return nil
	}
	var stat unix.Stat_t
	if err := unix.Fstat(t.root, &stat); err != nil {
		return err
	}
	unlocked := fsys.Unlock(t.root)
	fd, err := fsys.OpenDirectory(t.root, t.stage.name)
	if err != nil {
		return err
	}
	if err := files.EmptyDirectory(fd, used); err != nil {
		return err
	}
	if err := unix.Unlinkat(t.root, t.stage.name, unix.AT_REMOVEDIR); err != nil {
		return err
	}
	t.stage.close()
	return restore(t.root, [2]unix.Timespec{stat.Atim, stat.Mtim}, unlocked)
}

// remove removes a tree, or leaves its directory as it was found: empty, with the attributes that it had.
func (t *mirrored) remove(xattrs *fsys.XattrReader) error {
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
	return xattrs.SetOpen(fd, t.was, true)
}

func (t *mirrored) close() {
	t.stage.close()
	if t.root >= 0 {
		unix.Close(t.root)
		t.root = -1
	}
}

// permits refuses devices among the engine's own files, which have none.
func (t *mirrored) permits(entry *fsys.Entry) error {
	kind := entry.Type()
	if t.kind == files.Private && (kind == unix.S_IFCHR || kind == unix.S_IFBLK) {
		return fmt.Errorf("%w: there may be no device among the engine's files", records.ErrCorrupt)
	}
	return nil
}
