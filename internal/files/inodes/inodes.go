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
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
)

// Use is a file that a process has open, and whose inode it probably remembers.
type Use struct {
	Inside int    // PID in the container
	Name   string // its command name
	FD     int
	Format string // for example: SQLite database
	Path   string // in the container
}

// String describes it in one line: process 12 (python3), descriptor 5: SQLite database /data/db.
func (u Use) String() string {
	return kernel.Printable(
		fmt.Sprintf("process %d (%s), descriptor %d: %s %s", u.Inside, u.Name, u.FD, u.Format, u.Path))
}

const (
	maxUses  = 32              // maximum number in a report; the others follow when these are closed
	batch    = 256             // descriptors listed at a time
	patience = 5 * time.Second // with one file: a file system whose server is gone never answers
)

// Finder looks into containers, into each by one search at a time: one that waits for a file system whose
// server is gone may never end, and holds a thread and a descriptor.
type Finder struct {
	mu      sync.Mutex
	running map[string]*search                     // by container
	read    func(fd int, head []byte) (int, error) // instead of pread(2), for tests
}

// Find lists the open files of a container's processes whose inodes the processes probably remember: each
// file once for a process. Files on the mounts of the container at kept keep their inodes, and are left out.
// The processes are not stopped and nothing of them changes, so the answer is about this moment. Processes
// that end meanwhile are left out. An error says that a file could not be read: it may be such a file.
func (f *Finder) Find(ctx context.Context, container string, pids []int, kept []string) ([]Use, error) {
	for {
		s, own := f.search(ctx, container, pids, kept)
		select {
		case <-s.done:
		case <-s.stalled:
			return nil, s.stuck
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if own {
			return s.found, s.err
		}
	}
}

// search returns the search in a container that is under way, or begins one.
func (f *Finder) search(
	ctx context.Context, container string, pids []int, kept []string,
) (s *search, own bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.running[container]; s != nil {
		return s, false
	}
	s = &search{
		kept: kept, known: map[inode]*format{}, read: f.read,
		done: make(chan struct{}), stalled: make(chan struct{}),
	}
	if s.read == nil {
		s.read = func(fd int, head []byte) (int, error) { return unix.Pread(fd, head, 0) }
	}
	if f.running == nil {
		f.running = map[string]*search{}
	}
	f.running[container] = s
	go func() {
		s.run(ctx, pids)
		f.mu.Lock()
		delete(f.running, container)
		f.mu.Unlock()
		close(s.done)
	}()
	return s, true
}

// inode distinguishes files while they stay where they are.
type inode struct{ device, number uint64 }

// descriptor is an open file of a process.
type descriptor struct{ pid, fd int }

// search is a search in a container.
type search struct {
	kept    []string
	keeping map[string]bool   // the mounts at kept, by their IDs, of the process at hand
	known   map[inode]*format // nil: none
	read    func(fd int, head []byte) (int, error)
	at      atomic.Pointer[descriptor]
	next    func() // another file is next: the storage of the one before has answered

	stalled chan struct{} // closed when a file has not answered for long
	stuck   error         // when stalled
	done    chan struct{} // closed at the end
	found   []Use         // at the end
	err     error
}

// run searches until the end, or until it has stalled and the file answers after all.
func (s *search) run(ctx context.Context, pids []int) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(patience, sync.OnceFunc(func() {
		s.stuck = s.unread()
		close(s.stalled)
		cancel(s.stuck)
	}))
	defer watchdog.Stop()
	s.next = func() { watchdog.Reset(patience) }
	s.err = guard.Do(func() error { return s.all(ctx, pids) })
}

// unread names the file for which a search waits.
func (s *search) unread() error {
	at := s.at.Load()
	if at == nil {
		return fmt.Errorf("the processes' open files could not be listed for %s", patience)
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", at.pid, at.fd))
	if err != nil {
		path = "closed meanwhile"
	}
	return fmt.Errorf("descriptor %d of process %d (%s) could not be read for %s, "+
		"and may be an SQLite database: repair the file's storage, "+
		"or use --new-inodes if the file is not an SQLite database",
		at.fd, at.pid, kernel.Printable(path), patience)
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

// process examines all descriptors of a process.
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
	s.keeping = s.mounts(pid)
	seen := map[string]bool{}
	for ctx.Err() == nil && len(s.found) < maxUses {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
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
	return context.Cause(ctx)
}

// descriptor reports a descriptor if its file has a format. seen has the files of the process that were
// already found.
func (s *search) descriptor(pid int, pidfd *os.File, name string, seen map[string]bool) error {
	fd, err := strconv.Atoi(name)
	if err != nil {
		return nil // it is no descriptor
	}
	s.at.Store(&descriptor{pid, fd})
	s.next()
	link := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
	stat, ok := regular(unix.AT_FDCWD, link)
	if !ok || s.keeps(pid, fd) {
		return nil
	}
	f := s.formatOf(pidfd, fd, inode{unix.Mkdev(stat.Dev_major, stat.Dev_minor), stat.Ino})
	if f == nil {
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

// regular reports whether a file is a regular file with a name, so that it can be opened again, and has
// enough content for a format. It queries no server.
func regular(at int, path string) (stat unix.Statx_t, ok bool) {
	const wanted = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_SIZE
	err := unix.Statx(at, path, unix.AT_STATX_DONT_SYNC|unix.AT_EMPTY_PATH, wanted, &stat)
	ok = err == nil && stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Nlink > 0 && stat.Size >= longestPrefix
	return stat, ok
}

// formatOf finds the format of an open file; nil if it has none, cannot be read, or was closed meanwhile.
func (s *search) formatOf(pidfd *os.File, fd int, of inode) *format {
	if f, known := s.known[of]; known {
		return f
	}
	head, err := s.readHead(pidfd, fd, of.number)
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

// readHead reads the beginning of a process's file. It reads through the process's own open file, because
// opening the file again could wait for another process, or break its lease.
func (s *search) readHead(pidfd *os.File, fd int, number uint64) ([]byte, error) {
	got, err := kernel.PidfdGetfd(pidfd, fd)
	if err != nil {
		return nil, err
	}
	defer unix.Close(got)
	if stat, ok := regular(got, ""); !ok || stat.Ino != number {
		return nil, unix.EBADF // closed meanwhile, and reopened as another file
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(got, &system); err != nil {
		return nil, err
	}
	if slices.Contains([]int64{unix.SYSFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC,
		unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC}, int64(system.Type)) {
		return nil, nil // reading such a file can change what the process reads next
	}
	head := make([]byte, longestPrefix)
	n, err := s.read(got, head)
	if err != nil {
		return nil, err
	}
	return head[:n], nil
}

// mounts lists the mounts of a process on which files keep their inodes, by their IDs.
func (s *search) mounts(pid int) map[string]bool {
	if len(s.kept) == 0 {
		return nil
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil
	}
	defer file.Close()
	ids := map[string]bool{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		id, _, _ := strings.Cut(lines.Text(), " ")
		if m, ok := kernel.ParseMount(lines.Text()); ok && slices.Contains(s.kept, m.Point) {
			ids[id] = true
		}
	}
	return ids
}

// keeps reports whether a file is on one of these mounts. Statx reports mounts only since Linux 5.8.
func (s *search) keeps(pid, fd int) bool {
	if len(s.keeping) == 0 {
		return false
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(info), "\nmnt_id:")
	id, _, _ := strings.Cut(after, "\n")
	return s.keeping[strings.TrimSpace(id)]
}
