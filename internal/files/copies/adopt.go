package copies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
)

// A copy that broke off need not start again. Its result is moved aside (MoveContent), and the Mirror of
// the next attempt adopts it. Adopting moves it back into place, and removes everything except directories
// and regular files with one name, because only content is worth keeping. The mirror then reads what there
// is (Have), and reports it to the source; see kept.go.
//
// Nothing about it is trusted: neither that the earlier copy was complete, nor that it came from the same
// container, nor that it is on disk. It is read when it is reported.

// Adopt starts the trees with the contents of these directories, which are empty afterwards. Call it before
// the first round. After an error, undo the mirror, and remove what is left in the directories.
func (m *Mirror) Adopt(ctx context.Context, kept []files.Tree) error {
	m.b.ctx = ctx
	defer m.b.pause()
	for _, tree := range kept {
		if err := m.b.adopt(tree); err != nil {
			m.state = mirrorBroken
			return fmt.Errorf("go on from the copy in %s: %w", tree.Path, err)
		}
	}
	return nil
}

func (b *builder) adopt(tree files.Tree) error {
	t, err := b.trees.start(tree.Kind, tree.Name)
	if err != nil {
		return err
	}
	b.here = t
	if err := files.MoveContent(tree.Path, t.path); err != nil {
		return err
	}
	t.adopted = true
	fd, err := unix.Openat(t.root, ".", fsys.OpenDirectoryFlags, 0)
	if err != nil {
		return err
	}
	p := pruner{&b.used, b.ctx.Err}
	return p.prune(fd)
}

// dropStages removes the stages of earlier copies from an open directory. Their names are links to files
// with other names.
func dropStages(fd int) error {
	l := fsys.Listing{Buffer: make([]byte, fsys.ListingBuffer)}
	var stages []string
	for {
		name, _, err := l.Read(fd)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(name, stagePrefix) {
			stages = append(stages, name)
		}
	}
	for _, name := range stages {
		if err := dropStage(fd, name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	_, err := unix.Seek(fd, 0, io.SeekStart)
	return err
}

func dropStage(dirfd int, name string) error {
	fd, err := fsys.OpenDirectory(dirfd, name)
	if errors.Is(err, unix.ENOTDIR) {
		return files.Unlink(dirfd, name, 0)
	}
	if err != nil {
		return err
	}
	fsys.Unlock(fd)
	if err := files.EmptyDirectory(fd, nil); err != nil {
		return err
	}
	return files.Unlink(dirfd, name, unix.AT_REMOVEDIR)
}

// pruner removes what is not worth keeping of an earlier copy, and counts the rest.
type pruner struct {
	used  *files.Usage
	ended func() error // why not to go on; nil: go on
}

// prune takes over an open directory, and removes everything in it except directories and regular files
// with one name. It counts what stays.
func (p pruner) prune(fd int) error {
	w, err := fsys.NewWalk(fd)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := dropStages(w.Fd()); err != nil {
		return err
	}
	for w.Depth() > 0 {
		if err := p.ended(); err != nil {
			return err
		}
		name, kind, err := w.Next()
		switch {
		case errors.Is(err, io.EOF):
			err = w.Ascend()
		case err == nil:
			err = p.name(w, name, kind)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", w.Path(name), err)
		}
	}
	return nil
}

func (p pruner) name(w *fsys.Walk, name string, kind byte) error {
	if kind == unix.DT_DIR {
		return p.into(w, name)
	}
	var stat unix.Stat_t
	if err := unix.Fstatat(w.Fd(), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fsys.UnlessGone(err)
	}
	switch {
	case stat.Mode&unix.S_IFMT == unix.S_IFDIR:
		return p.into(w, name)
	case stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Nlink > 1: // the last of its names stays
		return files.Unlink(w.Fd(), name, 0)
	}
	if p.used.Bytes += files.Occupied(&stat); !p.used.Room(0) {
		return p.used.Full()
	}
	return errors.Join(p.used.Names(1), dropOverlay(fsys.Named(w.Fd(), name)))
}

func (p pruner) into(w *fsys.Walk, name string) error {
	if err := w.Descend(name); err != nil {
		return err
	}
	fsys.Unlock(w.Fd())
	return errors.Join(p.used.Names(1), dropOverlay(fsys.Opened(w.Fd())))
}

// dropOverlay removes overlayfs's attributes about the layers below a file, in case the earlier copy was
// mounted. The source handles all other attributes (portableXattr).
func dropOverlay(n fsys.Node) error {
	for _, name := range []string{"origin", "impure", "nlink", "upper"} {
		err := n.Remove("trusted.overlay." + name)
		switch {
		// the file is locked, and has none as far as is known
		case err == nil, errors.Is(err, unix.ENODATA), errors.Is(err, unix.EPERM):
		case errors.Is(err, unix.EOPNOTSUPP):
			return nil
		default:
			return fmt.Errorf("remove what overlayfs has noted: %w", err)
		}
	}
	return nil
}
