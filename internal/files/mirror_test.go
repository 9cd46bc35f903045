package files

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// stagehand plays the source of a mirror with its own records.
type stagehand struct {
	t      *testing.T
	mirror *Mirror
	dir    string // of the tree
	number uint64
}

func newStagehand(t *testing.T, limits Limits) *stagehand {
	t.Helper()
	dir := scratch(t)
	m := NewMirror(into(dir), limits)
	t.Cleanup(func() { check(t, m.Close()) })
	return &stagehand{t: t, mirror: m, dir: filepath.Join(dir, "writable-")}
}

// try sends a round with the one tree.
func (s *stagehand) try(kind roundKind, write func(w *roundWriter)) error {
	s.t.Helper()
	s.number++
	stream := forgeRound(s.t, s.number, kind, func(w *roundWriter) {
		w.tree(Writable, "")
		write(w)
	})
	last, err := s.mirror.Round(context.Background(), bytes.NewReader(stream))
	if err == nil && last != (kind == lastRound) {
		s.t.Errorf("round of kind %d was taken for the last: %v", kind, last)
	}
	return err
}

func (s *stagehand) round(write func(w *roundWriter)) {
	s.t.Helper()
	check(s.t, s.try(liveRound, write))
}

// last ends the copy without a further change.
func (s *stagehand) last() {
	s.t.Helper()
	check(s.t, s.try(lastRound, func(w *roundWriter) { w.up() }))
}

func (s *stagehand) at(name string) string { return filepath.Join(s.dir, name) }

// moment returns a time that nothing gets by itself.
func moment(n int64) Timestamp {
	return Timestamp{Seconds: 1_000_000_000 + n, Nanoseconds: 123_456_789}
}

func aFile(name, content string) *Entry {
	return &Entry{Name: name, Mode: unix.S_IFREG | 0o640, UID: 3, GID: 4, Size: int64(len(content)),
		Accessed: moment(1), Modified: moment(2)}
}

func aDirectory(n int64) *Entry {
	return &Entry{Mode: unix.S_IFDIR | 0o751, UID: 5, GID: 6, Accessed: moment(n), Modified: moment(n + 1)}
}

func file(w *roundWriter, e *Entry, content string) {
	w.other(e)
	w.bytes([]byte(content))
	w.endContent()
}

func rewrite(w *roundWriter, e *Entry, content string) {
	w.change(e, inPlace)
	w.bytes([]byte(content))
	w.endContent()
}

func wantTimes(t *testing.T, path string, n int64) {
	t.Helper()
	var stat unix.Stat_t
	check(t, unix.Lstat(path, &stat))
	want := [2]unix.Timespec{moment(n).timespec(), moment(n + 1).timespec()}
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
	s := newStagehand(t, Limits{})
	s.round(func(w *roundWriter) {
		w.directory("d")
		w.directory("e")
		file(w, aFile("f", "old"), "old")
		w.leave(aDirectory(10))
		file(w, aFile("g", "same"), "same")
		w.leave(aDirectory(20))
		w.leave(aDirectory(30))
	})
	s.round(func(w *roundWriter) {
		w.enter("d")
		w.enter("e")
		rewrite(w, aFile("f", "changed"), "changed")
		file(w, aFile("new", "x"), "x")
		w.up()
		w.remove("g")
		w.up()
		w.up()
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
	s := newStagehand(t, Limits{})
	with := func(e *Entry, flags uint32, xattrs ...Xattr) *Entry {
		e.Flags, e.Xattrs = flags, xattrs
		return e
	}
	user := func(name, value string) Xattr { return Xattr{Name: "user." + name, Value: []byte(value)} }
	s.round(func(w *roundWriter) {
		w.directory("d")
		w.leave(with(aDirectory(1), flagImmutable|flagNoDump, user("d", "1"),
			Xattr{"system.posix_acl_default", acl(8)}))
		file(w, with(aFile("f", "1"), flagAppend|flagNoDump, user("stays", "1"), user("goes", "1"),
			user("changes", "1"),
			Xattr{"system.posix_acl_access", acl(7)}, Xattr{"security.capability", fileCapability()}), "1")
		w.other(with(&Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "x", Modified: moment(0)}, 0,
			Xattr{"trusted.l", []byte("1")}))
		w.leave(with(aDirectory(1), flagImmutable|flagNoAtime, user("root", "1"),
			Xattr{"system.posix_acl_default", acl(9)}))
	})
	s.round(func(w *roundWriter) {
		w.enter("d")
		w.leave(with(aDirectory(5), 0))
		w.change(with(aFile("f", "1"), flagImmutable, user("stays", "1"), user("changes", "2"),
			user("comes", "")), keepContent)
		w.change(&Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "x", UID: 9, Modified: moment(9)},
			keepContent)
		w.directory("n")
		file(w, aFile("f", ""), "")
		w.leave(aDirectory(7))
		file(w, aFile("n2", ""), "")
		w.other(&Entry{Name: "p", Mode: unix.S_IFIFO | 0o600, Accessed: moment(1), Modified: moment(2)})
		w.leave(with(aDirectory(9), flagNoDump, user("root", "1")))
	})
	s.last()
	want := newStagehand(t, Limits{})
	check(t, want.try(lastRound, func(w *roundWriter) {
		w.directory("d")
		w.leave(aDirectory(5))
		file(w, with(aFile("f", "1"), flagImmutable, user("stays", "1"), user("changes", "2"),
			user("comes", "")), "1")
		w.other(&Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "x", UID: 9, Modified: moment(9)})
		w.directory("n")
		file(w, aFile("f", ""), "")
		w.leave(aDirectory(7))
		file(w, aFile("n2", ""), "")
		w.other(&Entry{Name: "p", Mode: unix.S_IFIFO | 0o600, Accessed: moment(1), Modified: moment(2)})
		w.leave(with(aDirectory(9), flagNoDump, user("root", "1")))
	}))
	same(t, snapshot(t, want.dir, nil), snapshot(t, s.dir, nil))
}

func TestImmutableDirectoriesAreChangedAndLockedAgain(t *testing.T) {
	s := newStagehand(t, Limits{})
	locked := func(e *Entry) *Entry { e.Flags = flagImmutable; return e }
	s.round(func(w *roundWriter) {
		w.directory("d")
		file(w, locked(aFile("a", "1")), "1")
		file(w, locked(aFile("b", "2")), "2")
		w.directory("in")
		w.leave(locked(aDirectory(1)))
		w.leave(locked(aDirectory(3)))
		w.leave(locked(aDirectory(5)))
	})
	s.round(func(w *roundWriter) {
		w.enter("d")
		w.park("a", 1)
		w.remove("b")
		w.park("in", 2)
		w.up()
		w.up()
	})
	s.round(func(w *roundWriter) {
		w.place(1, locked(aFile("a2", "1")), keepContent)
		w.placeDirectory(2, "in2")
		file(w, aFile("x", ""), "")
		w.up()
		w.up()
	})
	s.last()
	for _, name := range []string{".", "d", "a2", "in2"} {
		fd := must(unix.Open(s.at(name), unix.O_RDONLY, 0))
		flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
		check(t, err)
		unix.Close(fd)
		if flags&flagImmutable == 0 {
			t.Errorf("%s is not immutable any more", name)
		}
	}
	wantTimes(t, s.at("d"), 3)
	wantTimes(t, s.dir, 5)
	wantTimes(t, s.at("in2"), 1)
}

func TestNamesChangePlaces(t *testing.T) {
	s := newStagehand(t, Limits{})
	s.round(func(w *roundWriter) {
		file(w, aFile("a", "was a"), "was a")
		file(w, aFile("b", "was b"), "was b")
		w.directory("d")
		w.directory("below")
		file(w, aFile("deep", "deep"), "deep")
		w.leave(aDirectory(1))
		w.leave(aDirectory(3))
		w.leave(aDirectory(5))
	})
	s.round(func(w *roundWriter) { // a and b swap; d becomes a directory from below it
		w.park("a", 1)
		w.park("b", 2)
		w.enter("d")
		w.park("below", 3)
		w.up()
		w.park("d", 4)
		w.up()
	})
	s.round(func(w *roundWriter) {
		w.place(1, aFile("b", "was a, and more"), inPlace)
		w.keep(5)
		w.bytes([]byte(", and more"))
		w.endContent()
		w.place(2, aFile("a", "was b"), keepContent)
		w.placeDirectory(3, "d")
		w.placeDirectory(4, "below")
		w.leave(aDirectory(11))
		w.leave(aDirectory(13))
		w.leave(aDirectory(15))
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
	s := newStagehand(t, Limits{Bytes: 100_000, Entries: 4})
	large := strings.Repeat("x", 60_000)
	s.round(func(w *roundWriter) { file(w, aFile("a", large), large); w.up() })
	for range 5 { // changed in place, removed and made again, made beside: there is always one of it
		s.round(func(w *roundWriter) { rewrite(w, aFile("a", large), large); w.up() })
		s.round(func(w *roundWriter) { w.remove("a"); file(w, aFile("a", large), large); w.up() })
		s.round(func(w *roundWriter) {
			w.directory("d")
			file(w, aFile("b", "b"), "b")
			w.up()
			w.remove("d")
			w.change(aFile("a", large), withCopies)
			w.copy(10_000, 20_000)
			w.bytes([]byte(large[:10_000]))
			w.keep(30_000)
			w.endContent()
			w.up()
		})
	}
	if used := s.mirror.b.used; used.bytes != 60_000 || used.entries != 1 {
		t.Errorf("counted: %+v", used)
	}
	if err := s.try(liveRound,
		func(w *roundWriter) { file(w, aFile("b", large), large); w.up() }); err == nil {
		t.Error("more bytes than were agreed on were taken")
	}
	s = newStagehand(t, Limits{Entries: 2})
	s.round(func(w *roundWriter) { w.directory("d"); file(w, aFile("f", ""), ""); w.up(); w.up() })
	if err := s.try(liveRound,
		func(w *roundWriter) { w.enter("d"); file(w, aFile("g", ""), "") }); err == nil {
		t.Error("more files than were agreed on were made")
	}
}

func TestUndoAtAnyTime(t *testing.T) {
	for name, after := range map[string]func(s *stagehand){
		"a round": func(s *stagehand) {},
		"half a round": func(s *stagehand) {
			if s.try(liveRound,
				func(w *roundWriter) { w.park("a", 7); file(w, aFile("b", "b"), "b"); w.kind(99) }) == nil {
				s.t.Error("a bad round was taken")
			}
			if s.try(liveRound, func(w *roundWriter) { w.up() }) == nil {
				s.t.Error("a round was taken after one that failed")
			}
		},
		"the last round": func(s *stagehand) { s.last(); check(s.t, s.mirror.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStagehand(t, Limits{})
			s.round(func(w *roundWriter) {
				e := aFile("a", "a")
				e.Links, e.Flags = 1, flagImmutable
				file(w, e, "a")
				w.link("a2", 1)
				w.up()
			})
			after(s)
			check(t, s.mirror.Undo())
			if _, err := os.Lstat(s.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after undo: %v", err)
			}
			if s.try(liveRound, func(w *roundWriter) { w.up() }) == nil {
				t.Error("a round was taken after undo")
			}
		})
	}
}
