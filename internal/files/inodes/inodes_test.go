package inodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

const database = "SQLite format 3\x00 and pages"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open makes a file, unless the content is empty, and opens it until the test ends.
func open(t *testing.T, path, content string, flags int) int {
	t.Helper()
	if content != "" {
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// find returns the files of this process that are found below a directory.
func find(t *testing.T, directory string, kept ...string) []string {
	t.Helper()
	uses, err := new(Finder).Find(t.Context(), "web", []int{os.Getpid()}, kept)
	must(t, err)
	var found []string
	for _, u := range uses {
		if name, below := strings.CutPrefix(u.Path, directory+"/"); below {
			found = append(found, fmt.Sprintf("%d %s %s", u.FD, u.Format, name))
		}
	}
	return found
}

func TestFind(t *testing.T) {
	index := walIndex() + strings.Repeat("\x00", 32768)
	for name, c := range map[string]struct {
		make func(t *testing.T, dir string) int // returns the descriptor that should be found
		want string
	}{
		"for writing": {func(t *testing.T, dir string) int {
			return open(t, dir+"/db", database, unix.O_RDWR)
		}, "SQLite database db"},
		"for reading": {func(t *testing.T, dir string) int {
			return open(t, dir+"/db", database, unix.O_RDONLY)
		}, "SQLite database db"},
		"in WAL mode": {func(t *testing.T, dir string) int {
			fd := open(t, dir+"/db", database, unix.O_RDWR)
			open(t, dir+"/db-wal", "\x37\x7f\x06\x82 and frames of pages", unix.O_RDWR)
			open(t, dir+"/db-shm", index, unix.O_RDWR)
			return fd
		}, "SQLite database db"},
		"encrypted, in WAL mode": {func(t *testing.T, dir string) int {
			open(t, dir+"/db", "not to be recognised", unix.O_RDWR)
			return open(t, dir+"/db-shm", index, unix.O_RDWR)
		}, "index of an SQLite database in WAL mode db-shm"},
		"once by two connections": {func(t *testing.T, dir string) int {
			fd := open(t, dir+"/db", database, unix.O_RDWR)
			open(t, dir+"/db", "", unix.O_RDWR)
			return fd
		}, "SQLite database db"},
		"by the descriptor that can be read": {func(t *testing.T, dir string) int {
			open(t, dir+"/db", database, unix.O_WRONLY)
			return open(t, dir+"/db", "", unix.O_RDONLY)
		}, "SQLite database db"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fd := c.make(t, dir)
			want := []string{fmt.Sprintf("%d %s", fd, c.want)}
			if found := find(t, dir); !slices.Equal(found, want) {
				t.Errorf("found %q, want %q", found, want)
			}
		})
	}
}

// TestFindNothing: some files are not mistaken for others by any program after a move, and must not be
// waited for.
func TestFindNothing(t *testing.T) {
	dir := t.TempDir()
	locked := open(t, dir+"/locked", "any content, with a lock", unix.O_RDWR)
	must(t, unix.FcntlFlock(uintptr(locked), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	owned := open(t, dir+"/owned", "any content, with a lock", unix.O_RDWR)
	must(t, unix.FcntlFlock(uintptr(owned), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	open(t, dir+"/short", "SQLite format", unix.O_RDWR)
	open(t, dir+"/path", database, unix.O_PATH)
	open(t, dir, "", unix.O_DIRECTORY)
	open(t, dir+"/removed", database, unix.O_RDWR) // SQLite's temporary databases
	must(t, os.Remove(dir+"/removed"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	open(t, dir+"/fifo", "", unix.O_RDWR)
	memory, err := unix.MemfdCreate("db", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(memory)
	_, err = unix.Write(memory, []byte(database))
	must(t, err)
	uses, err := new(Finder).Find(t.Context(), "web", []int{os.Getpid(), 1 << 30}, nil)
	if err != nil || len(uses) > 0 {
		t.Errorf("found %v, %v", uses, err)
	}
}

// TestKept: files keep their inodes on some mounts.
func TestKept(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "inodes-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	open(t, filepath.Join(dir, "db"), database, unix.O_RDWR)
	if found := find(t, dir, "/", "/dev", dir); len(found) != 1 {
		t.Errorf("found %q beside other mounts", found)
	}
	if found := find(t, dir, "/dev/shm"); len(found) > 0 {
		t.Errorf("found %q on a mount that keeps inodes", found)
	}
}

// TestKeptUnread: a file that keeps its inode is not read, because its server may be gone.
func TestKeptUnread(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "inodes-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	open(t, filepath.Join(dir, "db"), database, unix.O_RDWR)
	f := &Finder{read: func(fd int, head []byte) (int, error) {
		if path, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); strings.HasPrefix(path, dir) {
			t.Error("it is read")
		}
		return unix.Pread(fd, head, 0)
	}}
	_, err = f.Find(t.Context(), "web", []int{os.Getpid()}, []string{"/dev/shm"})
	must(t, err)
}

// TestSlow: many files on slow storage take longer than one file may.
func TestSlow(t *testing.T) {
	dir := t.TempDir()
	const files = 20
	for i := range files {
		open(t, fmt.Sprintf("%s/db%d", dir, i), database, unix.O_RDWR)
	}
	synctest.Test(t, func(t *testing.T) {
		f := &Finder{read: func(fd int, head []byte) (int, error) {
			time.Sleep(patience / 2)
			return unix.Pread(fd, head, 0)
		}}
		uses, err := f.Find(t.Context(), "web", []int{os.Getpid()}, nil)
		if err != nil || len(uses) != files {
			t.Errorf("found %d: %v", len(uses), err)
		}
	})
}

// TestHung: a file that does not answer is named, and at most one search waits for it.
func TestHung(t *testing.T) {
	dir := t.TempDir()
	open(t, dir+"/db\n", database, unix.O_RDWR)
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		answers := make(chan struct{})
		f := &Finder{read: func(fd int, head []byte) (int, error) {
			reads.Add(1)
			<-answers
			return unix.Pread(fd, head, 0)
		}}
		find := func(ctx context.Context) ([]Use, error) {
			return f.Find(ctx, "web", []int{os.Getpid()}, nil)
		}
		short, cancel := context.WithTimeout(t.Context(), patience/2)
		defer cancel()
		if _, err := find(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("of no interest any more: %v", err)
		}
		for range 3 {
			_, err := find(t.Context())
			if err == nil || !strings.Contains(err.Error(), dir+"/db?)") ||
				!strings.Contains(err.Error(), "--new-inodes") {
				t.Errorf("a file that does not answer: %v", err)
			}
		}
		if n := reads.Load(); n != 1 {
			t.Errorf("%d searches wait", n)
		}
		close(answers)
		synctest.Wait()
		if uses, err := find(t.Context()); err != nil || len(uses) != 1 {
			t.Errorf("when it answers: %v, %v", uses, err)
		}
	})
}

// TestUnseen: the program does not notice the search. It keeps its lease, its lock and its position.
func TestUnseen(t *testing.T) {
	dir := t.TempDir()
	fd := open(t, dir+"/db", database, unix.O_RDWR)
	_, err := unix.Seek(fd, 7, 0)
	must(t, err)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	must(t, err)
	must(t, unix.Flock(fd, unix.LOCK_EX))
	if found := find(t, dir); len(found) != 1 {
		t.Errorf("found %q", found)
	}
	if lease, err := unix.FcntlInt(uintptr(fd), unix.F_GETLEASE, 0); err != nil || lease != unix.F_WRLCK {
		t.Errorf("the lease is %d, %v", lease, err)
	}
	if at, err := unix.Seek(fd, 0, 1); err != nil || at != 7 {
		t.Errorf("position %d, %v", at, err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	must(t, err)
	other := open(t, dir+"/db", "", unix.O_RDWR)
	if err := unix.Flock(other, unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("the lock is lost: %v", err)
	}
}

// TestBound: a container with any number of databases has a bounded list.
func TestBound(t *testing.T) {
	dir := t.TempDir()
	for i := range maxUses + 10 {
		open(t, fmt.Sprintf("%s/db%d", dir, i), database, unix.O_RDWR)
	}
	if found := find(t, dir); len(found) != maxUses {
		t.Errorf("found %d, want %d", len(found), maxUses)
	}
}

func TestFormats(t *testing.T) {
	for _, f := range formats {
		if f.name == "" || f.prefix == "" || len(f.prefix) > longestPrefix {
			t.Errorf("format %+v", f)
		}
	}
}

func TestUse(t *testing.T) {
	use := Use{Inside: 12, Name: "python3", FD: 5, Format: "SQLite database", Path: "/data/db"}
	want := "process 12 (python3), descriptor 5: SQLite database /data/db"
	if got := use.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	use.Name, use.Path = "a\x1b[2J", "/data/\n\u0085\u202e"
	want = "process 12 (a?[2J), descriptor 5: SQLite database /data/???"
	if got := use.String(); got != want {
		t.Errorf("with what terminals obey: %q, want %q", got, want)
	}
}
