package files

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// snapshot describes a tree completely, one line for each name: by means of its own, not those under test.
func snapshot(t *testing.T, path string, keepXattr func(string) bool) map[string]string {
	t.Helper()
	hold := must(unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE))
	defer unix.Close(hold)
	quiet := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOATIME, Attr_clr: unix.MOUNT_ATTR__ATIME}
	if err := unix.MountSetattr(hold, "", unix.AT_EMPTY_PATH, &quiet); err != nil {
		t.Fatalf("keep access times of %s: %v", path, err)
	}
	fd := must(unix.Openat(hold, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0))
	s := &snapshotter{t: t, lines: map[string]string{}, inodes: map[uint64][]string{}, keep: keepXattr}
	s.directory(fd, "")
	for _, paths := range s.inodes {
		slices.Sort(paths)
		for _, p := range paths {
			s.lines[p] += " names=" + strings.Join(paths, "|")
		}
	}
	return s.lines
}

type snapshotter struct {
	t      *testing.T
	lines  map[string]string
	inodes map[uint64][]string
	keep   func(string) bool
}

func (s *snapshotter) directory(fd int, path string) {
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		s.t.Fatal(err)
	}
	s.lines[path+"/"] = attributes(&stat) + s.flags(fd) + s.xattrs(fmt.Sprintf("/proc/self/fd/%d/.", fd))
	file := os.NewFile(uintptr(must(unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME, 0))), path)
	entries, err := file.ReadDir(-1)
	file.Close()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		s.name(fd, path+"/"+e.Name(), e.Name())
	}
}

func must(fd int, err error) int {
	if err != nil {
		panic(err)
	}
	return fd
}

func (s *snapshotter) name(dirfd int, path, name string) {
	var stat unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		s.t.Fatal(err)
	}
	line := attributes(&stat)
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.directory(must(unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME, 0)), path)
		return
	case unix.S_IFREG:
		fd := must(unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOATIME, 0))
		line += fmt.Sprintf(" size=%d", stat.Size) + s.flags(fd) + s.content(fd, stat.Size)
		unix.Close(fd)
	case unix.S_IFLNK:
		buffer := make([]byte, 5000)
		n, err := unix.Readlinkat(dirfd, name, buffer)
		if err != nil {
			s.t.Fatal(err)
		}
		line += " -> " + string(buffer[:n])
	case unix.S_IFCHR, unix.S_IFBLK:
		line += fmt.Sprintf(" device=%#x", stat.Rdev)
	}
	s.lines[path] = line + s.xattrs(fmt.Sprintf("/proc/self/fd/%d/%s", dirfd, name))
	if stat.Nlink > 1 {
		s.inodes[stat.Ino] = append(s.inodes[stat.Ino], path)
	}
}

func attributes(stat *unix.Stat_t) string {
	atime := fmt.Sprintf(" atime=%d.%09d", stat.Atim.Sec, stat.Atim.Nsec)
	return fmt.Sprintf("mode=%#o owner=%d:%d mtime=%d.%09d%s", stat.Mode, stat.Uid, stat.Gid, stat.Mtim.Sec, stat.Mtim.Nsec, atime)
}

func (s *snapshotter) flags(fd int) string {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" flags=%#x", flags&(0x8|0x10|0x20|0x40|0x80|0x10000))
}

func (s *snapshotter) content(fd int, size int64) string {
	digest := sha256.New()
	var runs []string
	for position := int64(0); position < size; {
		start, err := unix.Seek(fd, position, unix.SEEK_DATA)
		if err != nil {
			break
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			s.t.Fatal(err)
		}
		runs = append(runs, fmt.Sprintf("%d-%d", start, end))
		for at := start; at < end; {
			piece := make([]byte, min(end-at, 1<<20))
			n, err := unix.Pread(fd, piece, at)
			if err != nil || n == 0 {
				s.t.Fatal(n, err)
			}
			digest.Write(piece[:n])
			at += int64(n)
		}
		position = end
	}
	return fmt.Sprintf(" data=%s sha256=%x", strings.Join(runs, ","), digest.Sum(nil)[:8])
}

func (s *snapshotter) xattrs(path string) string {
	buffer := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buffer)
	if err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for _, name := range strings.Split(string(buffer[:n]), "\x00") {
		if name == "" || s.keep != nil && !s.keep(name) {
			continue
		}
		value := make([]byte, 64<<10)
		m, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, fmt.Sprintf(" %s=%x", name, value[:m]))
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// same compares two snapshots and shows what differs.
func same(t *testing.T, want, got map[string]string) {
	t.Helper()
	shown := 0
	for path, line := range want {
		if other, ok := got[path]; !ok || other != line {
			t.Errorf("%.200q:\nwant %.400s\ngot  %.400s", path, line, other)
			if shown++; shown > 10 {
				t.Fatal("...")
			}
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%.200q appeared", path)
		}
	}
}
