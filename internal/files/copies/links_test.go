package copies

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

func TestHardLinksComeAndGo(t *testing.T) {
	s := newStagehand(t, files.Limits{})
	numbered := func(name, content string, n uint64) *fsys.Entry {
		e := aFile(name, content)
		e.Links, e.Flags = n, fsys.FlagImmutable
		return e
	}
	s.round(func(w *records.RoundWriter) {
		file(w, numbered("a", "1", 1), "1")
		w.Link("b", 1)
		file(w, aFile("single", "2"), "2")
		w.Other(&fsys.Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "x", Links: 3})
		file(w, numbered("gone", "3", 4), "3")
		w.Link("gone2", 4)
		w.Up()
	})
	s.round(func(w *records.RoundWriter) {
		w.Remove("a")
		w.Link("c", 1)
		w.Change(numbered("single", "2", 2), records.KeepContent)
		w.Link("single2", 2)
		w.Link("l2", 3)
		w.Remove("gone")
		w.Remove("gone2")
		w.Forget(4)
		w.Up()
	})
	s.round(func(w *records.RoundWriter) {
		rewrite(w, numbered("c", "changed", 1), "changed")
		w.Park("single", 2)
		w.Place(2, numbered("single3", "2", 2), records.KeepContent)
		w.Remove("l")
		w.Up()
	})
	s.last()
	lines := snapshot(t, s.dir, nil)
	for path, want := range map[string]string{
		"/b": "names=/b|/c", "/c": "names=/b|/c", "/single2": "names=/single2|/single3",
	} {
		if !strings.HasSuffix(lines[path], want) || !strings.Contains(lines[path], "flags=0x10") {
			t.Errorf("%s: %s", path, lines[path])
		}
	}
	if len(lines) != 6 || strings.Contains(lines["/l2"], "names") {
		t.Errorf("got %d names: %v", len(lines), lines)
	}
	wantContent(t, s.at("b"), "changed")
}

func TestAsManyNamesAsThereMayBe(t *testing.T) {
	if os.Getenv(soakSeeds) == "" {
		return // 65,000 names take seconds; only the soak test does it
	}
	s := newStagehand(t, files.Limits{})
	const names = 65_000 // EXT4_LINK_MAX
	e := aFile("0", "x")
	e.Links, e.Flags = 9, fsys.FlagImmutable
	s.round(func(w *records.RoundWriter) {
		file(w, e, "x")
		for i := 1; i < names; i++ {
			w.Link(fmt.Sprint(i), 9)
		}
		w.Up()
	})
	s.round(func(w *records.RoundWriter) { w.Remove("17"); w.Up() })
	s.round(func(w *records.RoundWriter) { w.Link("again", 9); w.Up() })
	s.round(func(w *records.RoundWriter) { w.Change(e, records.KeepContent); w.Up() })
	s.last()
	var stat unix.Stat_t
	check(t, unix.Stat(s.at("0"), &stat))
	if stat.Nlink != names {
		t.Errorf("%d names, want %d", stat.Nlink, names)
	}
}
