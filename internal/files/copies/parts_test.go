package copies

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

func opened(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, fsys.OpenDirectoryFlags, 0)
	check(t, err)
	return fd
}

// TestDirectoryAsItWas: a directory keeps its times, unless it is made anew.
func TestDirectoryAsItWas(t *testing.T) {
	dir, before := t.TempDir(), time.Unix(1_000_000_000, 0)
	for _, made := range []bool{false, true} {
		check(t, os.Chtimes(dir, before, before))
		var p position
		check(t, p.into(opened(t, dir), "", made))
		check(t, p.edit(func() error { return unix.Mkdirat(p.Fd(), "new", 0o700) }))
		check(t, p.asItWas())
		check(t, p.ascend())
		info, err := os.Stat(dir)
		check(t, err)
		if info.ModTime().Equal(before) == made {
			t.Errorf("made %t: changed at %s", made, info.ModTime())
		}
		check(t, os.Remove(filepath.Join(dir, "new")))
	}
	var p position
	check(t, p.into(opened(t, dir), "", false))
	if err := p.edit(func() error { return unix.ENOSPC }); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a change that failed: %v", err)
	}
	if err := p.into(-1, "x", false); err == nil || p.Depth() != 1 || len(p.spots) != 1 {
		t.Errorf("a directory that is not open: %v, %d deep", err, p.Depth())
	}
	p.close()
}

// TestGrowingDirectory: a directory in which others make files is held once, and let go with the position.
func TestGrowingDirectory(t *testing.T) {
	var p position
	check(t, p.into(opened(t, t.TempDir()), "", true))
	check(t, p.grow("/tree"))
	d := p.spot().growing
	check(t, p.grow("/tree"))
	if p.spot().growing != d || d.users.Load() != 1 {
		t.Errorf("held by %d users", d.users.Load())
	}
	p.close()
	if d.users.Load() != 0 || p.Depth() != 0 || len(p.spots) != 0 {
		t.Errorf("%d users, %d deep", d.users.Load(), p.Depth())
	}
}

// TestTrees: a tree is made in an empty directory or a new one, and undo leaves what was there before.
func TestTrees(t *testing.T) {
	dir := t.TempDir()
	here := func(name string) string { return filepath.Join(dir, name) }
	all := trees{xattrs: fsys.NewXattrReader(), where: func(_ files.TreeKind, name string) (string, error) {
		if name == "unexpected" {
			return "", errors.New("unexpected")
		}
		return here(name), nil
	}}
	check(t, os.Mkdir(here("empty"), 0o751))
	check(t, os.Mkdir(here("full"), 0o751))
	check(t, os.WriteFile(here("full/file"), nil, 0o600))
	for _, name := range []string{"unexpected", "full", "below/missing"} {
		if one, err := all.start(files.Private, name); err == nil {
			t.Errorf("%s: %+v", name, one)
		}
	}
	for name, made := range map[string]bool{"new": true, "empty": false} {
		one, err := all.start(files.Private, name)
		check(t, err)
		if one.made != made || all.find(files.Private, name) != one || all.find(files.Writable, name) != nil {
			t.Errorf("%s: %+v", name, one)
		}
		info, err := os.Stat(here(name))
		check(t, err)
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %s", name, info.Mode())
		}
		check(t, os.WriteFile(here(name+"/file"), nil, 0o600))
		device := fsys.Entry{Mode: unix.S_IFCHR | 0o600}
		if err := one.permits(&device); !errors.Is(err, records.ErrCorrupt) {
			t.Errorf("a device: %v", err)
		}
	}
	var used files.Usage
	check(t, all.settle(&used)) // there are no stages
	all.close()
	check(t, all.undo())
	info, err := os.Stat(here("empty"))
	check(t, err)
	left, err := os.ReadDir(here("empty"))
	check(t, err)
	if info.Mode().Perm() != 0o751 || len(left) > 0 {
		t.Errorf("mode %s, %v", info.Mode(), left)
	}
	if _, err := os.Stat(here("new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a tree that was made: %v", err)
	}
}

// TestFileBeyondTheLimits: a file that grows beyond the limits is an error, and so is the end of the round
// while content is copied.
func TestFileBeyondTheLimits(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	check(t, err)
	defer file.Close()
	stopped := errors.New("stopped")
	var why error
	f := openFile{
		fd: int(file.Fd()), old: -1, entry: &fsys.Entry{Size: 1 << 16}, size: 1 << 16,
		used: &files.Usage{Limits: files.Limits{Bytes: 1 << 16}}, ended: func() error { return why },
	}
	check(t, f.zero(0, 1<<16))
	if err := f.zero(1<<16, 1<<16); err == nil || !strings.Contains(err.Error(), "agreed on") {
		t.Errorf("beyond the limits: %v", err)
	}
	check(t, f.had(0, 1<<16))
	if err := f.had(1, 1<<16); !errors.Is(err, records.ErrCorrupt) {
		t.Errorf("more than it had: %v", err)
	}
	f.entry.Size = 1 << 12
	check(t, f.shorten())
	check(t, f.account())
	if f.used.Bytes != 1<<12 {
		t.Errorf("%d bytes used", f.used.Bytes)
	}
	why = stopped
	if err := f.zero(0, 1); !errors.Is(err, stopped) {
		t.Errorf("zero: %v", err)
	}
	if err := f.copyRange(f.fd, 0, f.fd, 1<<13, 1<<12); !errors.Is(err, stopped) {
		t.Errorf("copy: %v", err)
	}
}
