package files

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHardLinksComeAndGo(t *testing.T) {
	s := newStagehand(t, Limits{})
	numbered := func(name, content string, n uint64) *Entry {
		e := aFile(name, content)
		e.Links, e.Flags = n, flagImmutable
		return e
	}
	s.round(func(w *roundWriter) {
		file(w, numbered("a", "1", 1), "1")
		w.link("b", 1)
		file(w, aFile("single", "2"), "2")
		w.other(&Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "x", Links: 3})
		file(w, numbered("gone", "3", 4), "3")
		w.link("gone2", 4)
		w.up()
	})
	s.round(func(w *roundWriter) {
		w.remove("a")
		w.link("c", 1)
		w.change(numbered("single", "2", 2), keepContent)
		w.link("single2", 2)
		w.link("l2", 3)
		w.remove("gone")
		w.remove("gone2")
		w.forget(4)
		w.up()
	})
	s.round(func(w *roundWriter) {
		rewrite(w, numbered("c", "changed", 1), "changed")
		w.park("single", 2)
		w.place(2, numbered("single3", "2", 2), keepContent)
		w.remove("l")
		w.up()
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
	s := newStagehand(t, Limits{})
	const names = 65_000 // EXT4_LINK_MAX
	e := aFile("0", "x")
	e.Links, e.Flags = 9, flagImmutable
	s.round(func(w *roundWriter) {
		file(w, e, "x")
		for i := 1; i < names; i++ {
			w.link(fmt.Sprint(i), 9)
		}
		w.up()
	})
	s.round(func(w *roundWriter) { w.remove("17"); w.up() })
	s.round(func(w *roundWriter) { w.link("again", 9); w.up() })
	s.round(func(w *roundWriter) { w.change(e, keepContent); w.up() })
	s.last()
	var stat unix.Stat_t
	check(t, unix.Stat(s.at("0"), &stat))
	if stat.Nlink != names {
		t.Errorf("%d names, want %d", stat.Nlink, names)
	}
}
