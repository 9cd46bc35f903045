package inodes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
)

// Use is a file that a process has open, and whose inode it probably remembers.
type Use struct {
	Inside int    // the process as the container sees it
	Name   string // its command name
	FD     int
	Format string // for example: SQLite database
	Path   string // in the container
}

// String names it in one line: process 12 (python3), descriptor 5: SQLite database /data/db.
func (u Use) String() string {
	return fmt.Sprintf("process %d (%s), descriptor %d: %s %s", u.Inside, u.Name, u.FD, u.Format, u.Path)
}

const (
	maxUses  = 32              // named at most; who has more learns of the others when these are closed
	batch    = 256             // descriptors listed at a time
	patience = 5 * time.Second // for file systems: one whose server is gone never answers
)

// Find lists the open files of processes whose inodes the processes probably remember: each file once for
// a process. Files on the mounts of the container at kept keep their inodes, and are left out. The processes
// are not stopped and nothing of them changes, so the answer is about this moment. Processes that end
// meanwhile are left out.
func Find(ctx context.Context, pids []int, kept []string) ([]Use, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s := &search{kept: kept, known: map[inode]*format{}}
	done := make(chan error, 1)
	go func() { done <- guard.Do(func() error { return s.all(ctx, pids) }) }()
	select {
	case err := <-done:
		return s.found, err
	case <-ctx.Done():
		return nil, fmt.Errorf("look which files the container has open: %w", context.Cause(ctx))
	}
}

// inode is what tells files apart while they stay where they are.
type inode struct{ device, number uint64 }

// search is one call of Find.
type search struct {
	kept  []string
	known map[inode]*format // nil: none
	found []Use
}

func (s *search) all(ctx context.Context, pids []int) error {
	for _, pid := range pids {
		err := s.process(ctx, pid)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("look which files process %d has open: %w", pid, err)
		}
	}
	return nil
}

// process looks at all descriptors of a process.
func (s *search) process(ctx context.Context, pid int) error {
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		return err
	}
	defer pidfd.Close()
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	defer dir.Close()
	seen := map[string]bool{}
	for ctx.Err() == nil && len(s.found) < maxUses {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if err := s.descriptor(pid, pidfd, name, seen); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// descriptor adds a descriptor to what is found, if its file has a format. seen has the files of the
// process that are found already.
func (s *search) descriptor(pid int, pidfd *os.File, name string, seen map[string]bool) error {
	fd, err := strconv.Atoi(name)
	if err != nil {
		return nil // it is no descriptor
	}
	link := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
	stat, ok := regular(unix.AT_FDCWD, link)
	if !ok {
		return nil
	}
	f := s.formatOf(pidfd, fd, inode{unix.Mkdev(stat.Dev_major, stat.Dev_minor), stat.Ino})
	if f == nil || s.keeps(pid, stat.Mnt_id) {
		return nil
	}
	path, err := os.Readlink(link)
	if err != nil {
		return nil // closed meanwhile
	}
	owner := path
	if f.suffix != "" {
		owner = strings.TrimSuffix(path, f.suffix)
	}
	if seen[owner] || len(s.found) == maxUses {
		return nil
	}
	seen[owner] = true
	process, err := kernel.ReadProcess(pid)
	if err != nil {
		return err
	}
	s.found = append(s.found, Use{
		Inside: process.NamespaceID, Name: process.Name, FD: fd, Format: f.name, Path: path,
	})
	return nil
}

// regular tells whether a file is a regular one that has a name, so that it can be opened again, and enough
// content for a format. It asks no server.
func regular(at int, path string) (stat unix.Statx_t, ok bool) {
	const wanted = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_SIZE | unix.STATX_MNT_ID
	err := unix.Statx(at, path, unix.AT_STATX_DONT_SYNC|unix.AT_EMPTY_PATH, wanted, &stat)
	ok = err == nil && stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Nlink > 0 && stat.Size >= longestPrefix
	return stat, ok
}

// formatOf finds the format of an open file; nil if it has none, cannot be read, or was closed meanwhile.
func (s *search) formatOf(pidfd *os.File, fd int, of inode) *format {
	if f, known := s.known[of]; known {
		return f
	}
	head, err := readHead(pidfd, fd, of.number)
	if err != nil {
		return nil // another descriptor of the file may be open for reading
	}
	var found *format
	if f, ok := formatOf(head); ok {
		found = &f
	}
	s.known[of] = found
	return found
}

// readHead reads how a file of a process begins. It reads by the process's own open file: opening the file
// anew could wait for another process, or ask one for its lease.
func readHead(pidfd *os.File, fd int, number uint64) ([]byte, error) {
	got, err := kernel.PidfdGetfd(pidfd, fd)
	if err != nil {
		return nil, err
	}
	defer unix.Close(got)
	if stat, ok := regular(got, ""); !ok || stat.Ino != number {
		return nil, unix.EBADF // closed meanwhile, and opened as another file
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(got, &system); err != nil {
		return nil, err
	}
	if slices.Contains([]int64{unix.SYSFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC,
		unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC}, int64(system.Type)) {
		return nil, nil // to read such a file can change what the process reads next
	}
	head := make([]byte, longestPrefix)
	n, err := unix.Pread(got, head, 0)
	if err != nil {
		return nil, err
	}
	return head[:n], nil
}

// keeps tells whether a mount is one on which files keep their inodes.
func (s *search) keeps(pid int, mount uint64) bool {
	if len(s.kept) == 0 {
		return false
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return false
	}
	defer file.Close()
	id := strconv.FormatUint(mount, 10) + " "
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), id) {
			continue
		}
		m, ok := kernel.ParseMount(lines.Text())
		return ok && slices.Contains(s.kept, m.Point)
	}
	return false
}
