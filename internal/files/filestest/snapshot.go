// Package filestest compares two directory trees in every attribute and byte, and gives tests a mount
// namespace of their own. It reads trees independently of package files, which its callers test.
package filestest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Snapshot describes a tree completely: a line for each path from its root; directories end in a slash.
type Snapshot map[string]string

// Options say what to ignore in a comparison. The zero value ignores nothing.
type Options struct {
	Xattrs func(name string) bool // attributes that count; nil: all
	// Zeros means that blocks of zeros count as holes. For space that was never written, the kernel reports
	// data if it happens to have it in memory, so the same file may be described in two ways.
	Zeros bool
}

// quietly opens a tree so that reading it moves no access time, if possible.
func quietly(path string) (int, error) {
	hold, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if errors.Is(err, unix.EINVAL) { // of another mount namespace
		return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	}
	if err != nil {
		return -1, err
	}
	quiet := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOATIME | unix.MOUNT_ATTR_RDONLY,
		Attr_clr: unix.MOUNT_ATTR__ATIME}
	if err := unix.MountSetattr(hold, "", unix.AT_EMPTY_PATH, &quiet); err != nil {
		return -1, errors.Join(fmt.Errorf("keep access times: %w", err), unix.Close(hold))
	}
	return hold, nil
}

// Take reads a tree without moving access times. In a tree of another mount namespace, reached through
// /proc, they do move.
func Take(path string, options Options) (Snapshot, error) {
	hold, err := quietly(path)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	defer unix.Close(hold)
	fd, err := openDirectory(hold, ".")
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	s := &snapshotter{options: options, lines: Snapshot{}, inodes: map[uint64][]string{},
		buffer: make([]byte, 256<<10)}
	if err := s.directory(fd, ""); err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	for _, paths := range s.inodes {
		slices.Sort(paths)
		for _, p := range paths {
			s.lines[p] += " names=" + strings.Join(paths, "|")
		}
	}
	return s.lines, nil
}

// Differences compares two snapshots, and describes at most the given number of differing paths.
func Differences(want, got Snapshot, most int) []string {
	var found []string
	for path, line := range want {
		if other, ok := got[path]; !ok {
			found = append(found, fmt.Sprintf("%.200q is missing: %.400s", path, line))
		} else if other != line {
			found = append(found, fmt.Sprintf("%.200q\nwant %.400s\ngot  %.400s", path, line, other))
		}
	}
	for path, line := range got {
		if _, ok := want[path]; !ok {
			found = append(found, fmt.Sprintf("%.200q appeared: %.400s", path, line))
		}
	}
	slices.Sort(found)
	if len(found) > most {
		found = append(found[:most], fmt.Sprintf("... and %d more", len(found)-most))
	}
	return found
}

type snapshotter struct {
	options Options
	lines   Snapshot
	inodes  map[uint64][]string
	buffer  []byte
}

func openDirectory(dirfd int, name string) (int, error) {
	return unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// directory describes an open directory, and closes it.
func (s *snapshotter) directory(fd int, path string) error {
	defer unix.Close(fd)
	line, err := s.attributes(fd, fdPath(fd)+"/.")
	if err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	s.lines[path+"/"] = line
	listed, err := openDirectory(fd, ".")
	if err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	file := os.NewFile(uintptr(listed), path)
	names, err := file.Readdirnames(-1)
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	for _, name := range names {
		if err := s.name(fd, path+"/"+name, name); err != nil {
			return err
		}
	}
	return nil
}

func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

func (s *snapshotter) name(dirfd int, path, name string) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	var (
		line string
		err  error
	)
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		fd, err := openDirectory(dirfd, name)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		return s.directory(fd, path)
	case unix.S_IFREG:
		line, err = s.regular(dirfd, name)
	default:
		line, err = s.special(dirfd, name, &stat)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	s.lines[path] = line
	if stat.Nlink > 1 {
		s.inodes[stat.Ino] = append(s.inodes[stat.Ino], path)
	}
	return nil
}

func (s *snapshotter) regular(dirfd int, name string) (string, error) {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	line, err := s.attributes(fd, fdPath(fd))
	if err != nil {
		return "", err
	}
	content, err := s.content(fd)
	return line + content, err
}

func (s *snapshotter) special(dirfd int, name string, stat *unix.Stat_t) (string, error) {
	line := describe(stat)
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		buffer := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dirfd, name, buffer)
		if err != nil {
			return "", err
		}
		line += fmt.Sprintf(" -> %q", buffer[:n])
	case unix.S_IFCHR, unix.S_IFBLK:
		line += fmt.Sprintf(" device=%#x", stat.Rdev)
	}
	attributes, err := s.xattrs(fdPath(dirfd)+"/"+name, unix.Llistxattr, unix.Lgetxattr)
	return line + attributes, err
}

// attributes describes an open file or directory.
func (s *snapshotter) attributes(fd int, path string) (string, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return "", err
	}
	line := describe(&stat)
	if flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err == nil {
		// sync, immutable, append, nodump, noatime, dirsync
		const travel = 0x8 | 0x10 | 0x20 | 0x40 | 0x80 | 0x10000
		line += fmt.Sprintf(" flags=%#x", flags&travel)
	}
	attributes, err := s.xattrs(path, unix.Listxattr, unix.Getxattr)
	return line + attributes, err
}

func describe(stat *unix.Stat_t) string {
	line := fmt.Sprintf("mode=%#o owner=%d:%d mtime=%d.%09d", stat.Mode, stat.Uid, stat.Gid, stat.Mtim.Sec,
		stat.Mtim.Nsec)
	line += fmt.Sprintf(" atime=%d.%09d", stat.Atim.Sec, stat.Atim.Nsec)
	if stat.Mode&unix.S_IFMT == unix.S_IFREG {
		line += fmt.Sprintf(" size=%d", stat.Size)
	}
	return line
}

func (s *snapshotter) xattrs(path string, list func(string, []byte) (int, error),
	get func(string, string, []byte) (int, error)) (string, error) {
	buffer := make([]byte, 64<<10)
	n, err := list(path, buffer)
	if err != nil {
		return "", fmt.Errorf("list attributes: %w", err)
	}
	var all []string
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(string(buffer[:n]), "\x00") {
		if name == "" || s.options.Xattrs != nil && !s.options.Xattrs(name) {
			continue
		}
		m, err := get(path, name, value)
		if err != nil {
			return "", fmt.Errorf("attribute %q: %w", name, err)
		}
		all = append(all, fmt.Sprintf(" %s=%x", name, value[:m]))
	}
	slices.Sort(all)
	return strings.Join(all, ""), nil
}

// block is the unit in which zeros count as holes.
const block = 4096

// content says where a file has data, and what.
func (s *snapshotter) content(fd int) (string, error) {
	c := &content{digest: sha256.New(), zeros: s.options.Zeros}
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	for position := int64(0); err == nil && position < size; {
		var start, end int64
		if start, err = unix.Seek(fd, position, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			err = nil
			break
		}
		if err == nil {
			end, err = unix.Seek(fd, start, unix.SEEK_HOLE)
		}
		if err == nil {
			err = s.read(c, fd, start, end)
		}
		position = end
	}
	if err != nil {
		return "", fmt.Errorf("read it: %w", err)
	}
	c.flush()
	return fmt.Sprintf("%s sha256=%x", c.runs, c.digest.Sum(nil)[:8]), nil
}

// read returns the bytes from start to end, a block at a time.
func (s *snapshotter) read(c *content, fd int, start, end int64) error {
	for start < end {
		most := min(end-start, int64(len(s.buffer)))
		n, err := unix.Pread(fd, s.buffer[:most], start)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		for piece := s.buffer[:n]; len(piece) > 0; {
			length := min(block-start%block, int64(len(piece)))
			c.add(start, piece[:length])
			start, piece = start+length, piece[length:]
		}
	}
	return nil
}

// content assembles the description of a file's content.
type content struct {
	zeros      bool
	digest     hash.Hash
	runs       string
	start, end int64 // of the run that is being read
}

func (c *content) add(at int64, piece []byte) {
	if c.zeros && len(bytes.TrimLeft(piece, "\x00")) == 0 {
		return
	}
	if at != c.end {
		c.flush()
		c.start = at
	}
	c.end = at + int64(len(piece))
	c.digest.Write(piece)
}

func (c *content) flush() {
	if c.end > c.start {
		c.runs += fmt.Sprintf(" data=%d-%d", c.start, c.end)
	}
	c.start = c.end
}
