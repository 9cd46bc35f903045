package files

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// SendTrees writes the trees to w, in the given order, so that ReceiveTrees makes the same again. The sources are only
// read, and not even their access times change. Nothing in them may change meanwhile: a file that becomes shorter is
// an error, a name that disappears is left out. Progress, which may be nil, is told now and then how many bytes have
// been written to w.
//
// Memory does not depend on the number of files, except for about 50 bytes for each inode that has several names.
func SendTrees(ctx context.Context, w io.Writer, trees []Tree, progress func(sent int64)) error {
	out, err := newBlockWriter(w, progress)
	if err != nil {
		return err
	}
	s := &sender{ctx: ctx, out: out, encoder: encoder{out: out}, xattrs: newXattrReader()}
	for _, tree := range trees {
		if err := s.tree(tree); err != nil {
			return fmt.Errorf("read %s: %w", tree.Path, err)
		}
	}
	if err := s.end(len(trees)); err != nil {
		return err
	}
	return out.finish()
}

// inode identifies a file that has several names.
type inode struct{ device, number uint64 }

// names says what is known of such a file: the number it got in the stream, and how many names are still to come.
type names struct{ number, remaining uint64 }

type sender struct {
	encoder
	ctx     context.Context
	out     *blockWriter
	xattrs  *xattrReader
	links   map[inode]names
	numbers uint64 // given out in this tree
	entries uint64
	content uint64
}

func (s *sender) tree(tree Tree) error {
	root, hold, err := openSource(tree.Path)
	if err != nil {
		return err
	}
	if hold >= 0 {
		// Dropping the last reference to a mount waits for the kernel's readers, some milliseconds: not here.
		defer func() { go unix.Close(hold) }()
	}
	w, err := newWalk(root)
	if err != nil {
		return err
	}
	defer w.close()
	s.links, s.numbers = make(map[inode]names), 0
	s.kind(recordTree)
	s.text(string(tree.Kind))
	s.text(tree.Name)
	if err := s.write(); err != nil {
		return err
	}
	for w.depth() > 0 {
		if err := s.step(w); err != nil {
			return err
		}
	}
	return nil
}

// step sends one name, or leaves a directory that has no more.
func (s *sender) step(w *walk) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	name, kind, err := w.next()
	if errors.Is(err, io.EOF) {
		return s.leave(w)
	}
	if err == nil {
		err = s.name(w, name, kind)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", w.path(name), err)
	}
	return nil
}

// name sends one entry. Directories and regular files are opened first and asked then, so that it is the open one
// that is described. What has vanished since it was listed is not there.
func (s *sender) name(w *walk, name string, kind byte) error {
	if kind == unix.DT_UNKNOWN {
		var stat unix.Stat_t
		if err := unix.Fstatat(w.fd(), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return unlessGone(err)
		}
		kind = byte(stat.Mode & unix.S_IFMT >> 12) // DT_* are the type bits of st_mode
	}
	switch kind {
	case unix.DT_DIR:
		return s.directory(w, name)
	case unix.DT_REG:
		return s.regular(w.fd(), name)
	default:
		return s.special(w.fd(), name)
	}
}

func unlessGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (s *sender) directory(w *walk, name string) error {
	if err := w.descend(name); err != nil {
		return unlessGone(err)
	}
	s.kind(recordDirectory)
	s.text(name)
	return s.write()
}

func (s *sender) leave(w *walk) error {
	var stat unix.Stat_t
	if err := unix.Fstat(w.fd(), &stat); err != nil {
		return err
	}
	entry := describe(w.name(), &stat)
	if err := s.xattrs.complete(&entry, w.fd()); err != nil {
		return fmt.Errorf("%q: %w", w.path(""), err)
	}
	s.entries++
	s.kind(recordLeave)
	s.entry(&entry)
	if err := s.write(); err != nil {
		return err
	}
	return w.ascend()
}

func (s *sender) regular(dirfd int, name string) error {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOATIME | unix.O_CLOEXEC
	fd, err := unix.Openat(dirfd, name, flags, 0)
	if err != nil {
		return unlessGone(err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	entry := describe(name, &stat)
	if entry.Type() != unix.S_IFREG {
		return fmt.Errorf("it changed while it was read")
	}
	if known, err := s.linked(&entry, &stat); known || err != nil {
		return err
	}
	if err := s.xattrs.complete(&entry, fd); err != nil {
		return err
	}
	if err := s.other(&entry); err != nil {
		return err
	}
	return s.runs(fd, entry.Size)
}

func (s *sender) special(dirfd int, name string) error {
	var stat unix.Stat_t
	err := unix.Fstatat(dirfd, name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return unlessGone(err)
	}
	entry := describe(name, &stat)
	switch entry.Type() {
	case unix.S_IFREG, unix.S_IFDIR:
		return fmt.Errorf("it changed while it was read")
	case unix.S_IFLNK:
		if entry.Target, err = readLink(dirfd, name); err != nil {
			return err
		}
	}
	if known, err := s.linked(&entry, &stat); known || err != nil {
		return err
	}
	if entry.Xattrs, err = s.xattrs.read(named(dirfd, name)); err != nil {
		return err
	}
	return s.other(&entry)
}

// linked sends a further name of an inode that was sent before, and numbers one that will have further names.
func (s *sender) linked(entry *Entry, stat *unix.Stat_t) (known bool, err error) {
	if stat.Nlink < 2 {
		return false, nil
	}
	key := inode{device: stat.Dev, number: stat.Ino}
	link, known := s.links[key]
	if !known {
		s.numbers++
		entry.Links = s.numbers
		s.links[key] = names{number: s.numbers, remaining: uint64(stat.Nlink) - 1}
		return false, nil
	}
	link.remaining--
	s.entries++
	s.kind(recordLink)
	s.text(entry.Name)
	s.number(link.number)
	if link.remaining == 0 {
		delete(s.links, key)
		s.number(1)
	} else {
		s.links[key] = link
		s.number(0)
	}
	return true, s.write()
}

func (s *sender) other(entry *Entry) error {
	s.entries++
	s.kind(recordOther)
	s.entry(entry)
	return s.write()
}

func (s *sender) end(trees int) error {
	s.kind(recordEnd)
	s.number(uint64(trees))
	s.number(s.entries)
	s.number(s.content)
	return s.write()
}

// runs sends the content of a file without its holes.
func (s *sender) runs(fd int, size int64) error {
	for sent := int64(0); ; {
		start, end, err := nextData(fd, sent, size)
		if err != nil {
			return err
		}
		if start == end {
			s.run(0, 0)
			return s.write()
		}
		if err := s.data(fd, start-sent, start, end); err != nil {
			return err
		}
		sent = end
	}
}

// nextData finds the first bytes at or behind a position that are not in a hole; none: start == end.
func nextData(fd int, from, size int64) (start, end int64, err error) {
	if from >= size {
		return size, size, nil
	}
	start, err = unix.Seek(fd, from, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return from, size, nil // this file system does not tell
	case err != nil:
		return 0, 0, fmt.Errorf("look for data: %w", err)
	}
	if start >= size {
		return size, size, nil
	}
	if end, err = unix.Seek(fd, start, unix.SEEK_HOLE); err != nil {
		return 0, 0, fmt.Errorf("look for a hole: %w", err)
	}
	return start, min(end, size), nil
}

// data sends the bytes from start to end, read straight into the outgoing block.
func (s *sender) data(fd int, hole, start, end int64) error {
	const (
		header = 2 * 10  // two varints
		worth  = 4 << 10 // less space than this is not worth a read of its own
	)
	for start < end {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		space, err := s.out.room(header + int(min(end-start, worth)))
		if err != nil {
			return err
		}
		length := min(end-start, int64(len(space)-header))
		s.run(uint64(hole), uint64(length))
		n := copy(space, s.scratch)
		s.scratch = s.scratch[:0]
		if err := readFull(fd, space[n:n+int(length)], start); err != nil {
			return err
		}
		s.out.commit(n + int(length))
		s.content += uint64(length)
		start += length
		hole = 0
	}
	return nil
}

func readFull(fd int, p []byte, offset int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(fd, p, offset)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read it: %w", err)
		case n == 0:
			return fmt.Errorf("it became shorter while it was read")
		}
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}
