package copies

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// stagehand plays the source of a mirror with its own records.
type stagehand struct {
	t      *testing.T
	mirror *Mirror
	dir    string // of the tree
	number uint64
}

func newStagehand(t *testing.T, limits files.Limits) *stagehand {
	t.Helper()
	dir := scratch(t)
	m := NewMirror(into(dir), limits)
	t.Cleanup(func() { check(t, m.Close()) })
	return &stagehand{t: t, mirror: m, dir: filepath.Join(dir, "writable-")}
}

// try sends a round with the one tree.
func (s *stagehand) try(kind records.RoundKind, write func(w *records.RoundWriter)) error {
	s.t.Helper()
	s.number++
	stream := forgeRound(s.t, s.number, kind, func(w *records.RoundWriter) {
		w.Tree(files.Writable, "")
		write(w)
	})
	last, err := s.mirror.Round(context.Background(), bytes.NewReader(stream))
	if err == nil && last != (kind == records.LastRound) {
		s.t.Errorf("round of kind %d was taken for the last: %v", kind, last)
	}
	return err
}

func (s *stagehand) round(write func(w *records.RoundWriter)) {
	s.t.Helper()
	check(s.t, s.try(records.LiveRound, write))
}

// last ends the copy without a further change.
func (s *stagehand) last() {
	s.t.Helper()
	check(s.t, s.try(records.LastRound, func(w *records.RoundWriter) { w.Up() }))
}

func (s *stagehand) at(name string) string { return filepath.Join(s.dir, name) }

// moment returns a time that nothing gets by itself.
func moment(n int64) fsys.Timestamp {
	return fsys.Timestamp{Seconds: 1_000_000_000 + n, Nanoseconds: 123_456_789}
}

func aFile(name, content string) *fsys.Entry {
	return &fsys.Entry{Name: name, Mode: unix.S_IFREG | 0o640, UID: 3, GID: 4, Size: int64(len(content)),
		Accessed: moment(1), Modified: moment(2)}
}

func aDirectory(n int64) *fsys.Entry {
	return &fsys.Entry{Mode: unix.S_IFDIR | 0o751, UID: 5, GID: 6, Accessed: moment(n), Modified: moment(n +
		1)}
}

func file(w *records.RoundWriter, e *fsys.Entry, content string) {
	w.Other(e)
	w.Bytes([]byte(content))
	w.EndContent()
}

func rewrite(w *records.RoundWriter, e *fsys.Entry, content string) {
	w.Change(e, records.InPlace)
	w.Bytes([]byte(content))
	w.EndContent()
}

func wantTimes(t *testing.T, path string, n int64) {
	t.Helper()
	var stat unix.Stat_t
	check(t, unix.Lstat(path, &stat))
	want := [2]unix.Timespec{moment(n).Timespec(), moment(n + 1).Timespec()}
	if got := [2]unix.Timespec{stat.Atim, stat.Mtim}; got != want {
		t.Errorf("times of %s are %v, want %v", path, got, want)
	}
}

func wantContent(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s has %.100q, %v; want %.100q", path, got, err, want)
	}
}

func TestWhatARoundDoesNotMentionStays(t *testing.T) {
	s := newStagehand(t, files.Limits{})
	s.round(func(w *records.RoundWriter) {
		w.Directory("d")
		w.Directory("e")
		file(w, aFile("f", "old"), "old")
		w.Leave(aDirectory(10))
		file(w, aFile("g", "same"), "same")
		w.Leave(aDirectory(20))
		w.Leave(aDirectory(30))
	})
	s.round(func(w *records.RoundWriter) {
		w.Enter("d")
		w.Enter("e")
		rewrite(w, aFile("f", "changed"), "changed")
		file(w, aFile("new", "x"), "x")
		w.Up()
		w.Remove("g")
		w.Up()
		w.Up()
	})
	s.last()
	wantTimes(t, s.at("d/e/f"), 1)
	wantTimes(t, s.at("d/e"), 10)
	wantTimes(t, s.at("d"), 20)
	wantTimes(t, s.dir, 30)
	wantContent(t, s.at("d/e/f"), "changed")
	wantContent(t, s.at("d/e/new"), "x")
	if _, err := os.Lstat(s.at("d/g")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was removed: %v", err)
	}
}

func TestAttributesBecomeExact(t *testing.T) {
	s := newStagehand(t, files.Limits{})
	with := func(e *fsys.Entry, flags uint32, xattrs ...fsys.Xattr) *fsys.Entry {
		e.Flags, e.Xattrs = flags, xattrs
		return e
	}
	user := func(name, value string) fsys.Xattr {
		return fsys.Xattr{Name: "user." + name, Value: []byte(value)}
	}
	s.round(func(w *records.RoundWriter) {
		w.Directory("d")
		w.Leave(with(aDirectory(1), fsys.FlagImmutable|fsys.FlagNoDump, user("d", "1"),
			fsys.Xattr{Name: "system.posix_acl_default", Value: acl(8)}))
		file(w, with(aFile("f", "1"), fsys.FlagAppend|fsys.FlagNoDump, user("stays", "1"), user("goes", "1"),
			user("changes", "1"),
			fsys.Xattr{Name: "system.posix_acl_access", Value: acl(7)},
			fsys.Xattr{Name: "security.capability", Value: fileCapability()}), "1")
		w.Other(with(&fsys.Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "x", Modified: moment(0)}, 0,
			fsys.Xattr{Name: "trusted.l", Value: []byte("1")}))
		w.Leave(with(aDirectory(1), fsys.FlagImmutable|fsys.FlagNoAtime, user("root", "1"),
			fsys.Xattr{Name: "system.posix_acl_default", Value: acl(9)}))
	})
	s.round(func(w *records.RoundWriter) {
		w.Enter("d")
		w.Leave(with(aDirectory(5), 0))
		w.Change(with(aFile("f", "1"), fsys.FlagImmutable, user("stays", "1"), user("changes", "2"),
			user("comes", "")), records.KeepContent)
		w.Change(&fsys.Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "x", UID: 9, Modified: moment(9)},
			records.KeepContent)
		w.Directory("n")
		file(w, aFile("f", ""), "")
		w.Leave(aDirectory(7))
		file(w, aFile("n2", ""), "")
		w.Other(&fsys.Entry{Name: "p", Mode: unix.S_IFIFO | 0o600, Accessed: moment(1), Modified: moment(2)})
		w.Leave(with(aDirectory(9), fsys.FlagNoDump, user("root", "1")))
	})
	s.last()
	want := newStagehand(t, files.Limits{})
	check(t, want.try(records.LastRound, func(w *records.RoundWriter) {
		w.Directory("d")
		w.Leave(aDirectory(5))
		file(w, with(aFile("f", "1"), fsys.FlagImmutable, user("stays", "1"), user("changes", "2"),
			user("comes", "")), "1")
		w.Other(&fsys.Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "x", UID: 9, Modified: moment(9)})
		w.Directory("n")
		file(w, aFile("f", ""), "")
		w.Leave(aDirectory(7))
		file(w, aFile("n2", ""), "")
		w.Other(&fsys.Entry{Name: "p", Mode: unix.S_IFIFO | 0o600, Accessed: moment(1), Modified: moment(2)})
		w.Leave(with(aDirectory(9), fsys.FlagNoDump, user("root", "1")))
	}))
	same(t, snapshot(t, want.dir, nil), snapshot(t, s.dir, nil))
}

func TestImmutableDirectoriesAreChangedAndLockedAgain(t *testing.T) {
	s := newStagehand(t, files.Limits{})
	locked := func(e *fsys.Entry) *fsys.Entry { e.Flags = fsys.FlagImmutable; return e }
	s.round(func(w *records.RoundWriter) {
		w.Directory("d")
		file(w, locked(aFile("a", "1")), "1")
		file(w, locked(aFile("b", "2")), "2")
		w.Directory("in")
		w.Leave(locked(aDirectory(1)))
		w.Leave(locked(aDirectory(3)))
		w.Leave(locked(aDirectory(5)))
	})
	s.round(func(w *records.RoundWriter) {
		w.Enter("d")
		w.Park("a", 1)
		w.Remove("b")
		w.Park("in", 2)
		w.Up()
		w.Up()
	})
	s.round(func(w *records.RoundWriter) {
		w.Place(1, locked(aFile("a2", "1")), records.KeepContent)
		w.PlaceDirectory(2, "in2")
		file(w, aFile("x", ""), "")
		w.Up()
		w.Up()
	})
	s.last()
	for _, name := range []string{".", "d", "a2", "in2"} {
		fd := must(unix.Open(s.at(name), unix.O_RDONLY, 0))
		flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
		check(t, err)
		unix.Close(fd)
		if flags&fsys.FlagImmutable == 0 {
			t.Errorf("%s is not immutable any more", name)
		}
	}
	wantTimes(t, s.at("d"), 3)
	wantTimes(t, s.dir, 5)
	wantTimes(t, s.at("in2"), 1)
}

func TestNamesChangePlaces(t *testing.T) {
	s := newStagehand(t, files.Limits{})
	s.round(func(w *records.RoundWriter) {
		file(w, aFile("a", "was a"), "was a")
		file(w, aFile("b", "was b"), "was b")
		w.Directory("d")
		w.Directory("below")
		file(w, aFile("deep", "deep"), "deep")
		w.Leave(aDirectory(1))
		w.Leave(aDirectory(3))
		w.Leave(aDirectory(5))
	})
	s.round(func(w *records.RoundWriter) { // a and b swap; d becomes a directory from below it
		w.Park("a", 1)
		w.Park("b", 2)
		w.Enter("d")
		w.Park("below", 3)
		w.Up()
		w.Park("d", 4)
		w.Up()
	})
	s.round(func(w *records.RoundWriter) {
		w.Place(1, aFile("b", "was a, and more"), records.InPlace)
		w.Keep(5)
		w.Bytes([]byte(", and more"))
		w.EndContent()
		w.Place(2, aFile("a", "was b"), records.KeepContent)
		w.PlaceDirectory(3, "d")
		w.PlaceDirectory(4, "below")
		w.Leave(aDirectory(11))
		w.Leave(aDirectory(13))
		w.Leave(aDirectory(15))
	})
	s.last()
	wantContent(t, s.at("a"), "was b")
	wantContent(t, s.at("b"), "was a, and more")
	wantContent(t, s.at("d/deep"), "deep")
	for name, n := range map[string]int64{"d/below": 11, "d": 13, ".": 15} {
		wantTimes(t, s.at(name), n)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 3 {
		t.Errorf("got %v, %v", left, err)
	}
}

func TestLimitsAreOnWhatIsThere(t *testing.T) {
	s := newStagehand(t, files.Limits{Bytes: 100_000, Entries: 4})
	large := strings.Repeat("x", 60_000)
	s.round(func(w *records.RoundWriter) { file(w, aFile("a", large), large); w.Up() })
	for range 5 { // changed in place, removed and made again, made beside: there is always one of it
		s.round(func(w *records.RoundWriter) { rewrite(w, aFile("a", large), large); w.Up() })
		s.round(func(w *records.RoundWriter) { w.Remove("a"); file(w, aFile("a", large), large); w.Up() })
		s.round(func(w *records.RoundWriter) {
			w.Directory("d")
			file(w, aFile("b", "b"), "b")
			w.Up()
			w.Remove("d")
			w.Change(aFile("a", large), records.WithCopies)
			w.Copy(10_000, 20_000)
			w.Bytes([]byte(large[:10_000]))
			w.Keep(30_000)
			w.EndContent()
			w.Up()
		})
	}
	if used := s.mirror.b.used; used.Bytes != 60_000 || used.Entries != 1 {
		t.Errorf("counted: %+v", used)
	}
	if err := s.try(records.LiveRound,
		func(w *records.RoundWriter) { file(w, aFile("b", large), large); w.Up() }); err == nil {
		t.Error("more bytes than were agreed on were taken")
	}
	s = newStagehand(t, files.Limits{Entries: 2})
	s.round(func(w *records.RoundWriter) { w.Directory("d"); file(w, aFile("f", ""), ""); w.Up(); w.Up() })
	if err := s.try(records.LiveRound,
		func(w *records.RoundWriter) { w.Enter("d"); file(w, aFile("g", ""), "") }); err == nil {
		t.Error("more files than were agreed on were made")
	}
}

func TestUndoAtAnyTime(t *testing.T) {
	for name, after := range map[string]func(s *stagehand){
		"a round": func(s *stagehand) {},
		"half a round": func(s *stagehand) {
			if s.try(records.LiveRound,
				func(w *records.RoundWriter) {
					w.Park("a", 7)
					file(w, aFile("b", "b"),
						"b")
					w.Kind(99)
				}) == nil {
				s.t.Error("a bad round was taken")
			}
			if s.try(records.LiveRound, func(w *records.RoundWriter) { w.Up() }) == nil {
				s.t.Error("a round was taken after one that failed")
			}
		},
		"the last round": func(s *stagehand) { s.last(); check(s.t, s.mirror.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStagehand(t, files.Limits{})
			s.round(func(w *records.RoundWriter) {
				e := aFile("a", "a")
				e.Links, e.Flags = 1, fsys.FlagImmutable
				file(w, e, "a")
				w.Link("a2", 1)
				w.Up()
			})
			after(s)
			check(t, s.mirror.Undo())
			if _, err := os.Lstat(s.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after undo: %v", err)
			}
			if s.try(records.LiveRound, func(w *records.RoundWriter) { w.Up() }) == nil {
				t.Error("a round was taken after undo")
			}
		})
	}
}
