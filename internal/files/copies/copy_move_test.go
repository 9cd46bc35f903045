package copies

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// bulk is the size of each directory's content: much more than the records of a move.
const bulk = 100_000

// directories makes directories with files, and copies them until everything is settled.
func directories(t *testing.T, paths ...string) *copying {
	t.Helper()
	root := scratch(t)
	for i, path := range paths {
		check(t, os.MkdirAll(filepath.Join(root, path), 0o755))
		for f := range 3 {
			write(t, filepath.Join(root, path, fmt.Sprintf("file-%d", f)), noise(bulk/3, uint64(10*i+f)))
		}
	}
	c := startCopy(t, root)
	c.do(records.LiveRound)
	settle(t)
	c.do(records.LiveRound)
	return c
}

// TestDirectoriesThatMove renames directories, and sends nothing in them again.
func TestDirectoriesThatMove(t *testing.T) {
	for what, test := range map[string]struct {
		directories []string
		change      func(t *testing.T, at func(string) string)
		most        int64 // maximum of sent bytes
	}{
		"another name": {[]string{"a", "a/b/c", "d"}, func(t *testing.T, at func(string) string) {
			check(t, os.Rename(at("a"), at("z")))
		}, 0},
		"another directory, whose names are in several frames": {[]string{"a/b/c"},
			func(t *testing.T, at func(string) string) {
				check(t, os.Rename(at("a/b"), at("many/name-0500-b")))
				check(t, os.Rename(at("a"), at("many/zzz")))
			}, 0},
		"below one that moves as well": {[]string{"a/b/c", "d/e"},
			func(t *testing.T, at func(string) string) {
				check(t, os.Rename(at("a/b/c"), at("d/c")))
				check(t, os.Rename(at("a"), at("d/e/a")))
			}, 0},
		"the place of another one that moves": {[]string{"old", "new", "new/sub"},
			func(t *testing.T, at func(string) string) {
				check(t, os.Rename(at("old"), at("older")))
				check(t, os.Rename(at("new"), at("old")))
			}, 0},
		"the place of one that is removed": {[]string{"old", "old/sub", "new", "new/sub"},
			func(t *testing.T, at func(string) string) {
				check(t, os.Rename(at("old/sub"), at("saved")))
				check(t, os.RemoveAll(at("old")))
				check(t, os.Rename(at("new"), at("old")))
			}, 0},
		"two that swap": {[]string{"a", "b/c"}, func(t *testing.T, at func(string) string) {
			check(t, unix.Renameat2(unix.AT_FDCWD, at("a"), unix.AT_FDCWD, at("b"), unix.RENAME_EXCHANGE))
		}, 0},
		"and changes": {[]string{"a", "a/b"}, func(t *testing.T, at func(string) string) {
			check(t, os.Rename(at("a"), at("z")))
			check(t, os.Remove(at("z/file-0")))
			check(t, os.Rename(at("z/b"), at("z/c")))
			write(t, at("z/file-1"), noise(bulk/3, 99))
		}, 2 * bulk},
		"into a new one": {[]string{"a/b"}, func(t *testing.T, at func(string) string) {
			check(t, os.Mkdir(at("new"), 0o700))
			check(t, os.Rename(at("a"), at("new/a")))
		}, bulk},
		"a file has its name": {[]string{"a", "b"}, func(t *testing.T, at func(string) string) {
			check(t, os.Rename(at("a"), at("c")))
			write(t, at("a"), "a file")
			check(t, os.Rename(at("b"), at("a0")))
		}, 10},
		"that cannot be changed": {[]string{"a", "b"}, func(t *testing.T, at func(string) string) {
			check(t, os.Rename(at("a"), at("b/a")))
			setFlags(t, at("b/a"), fsys.FlagImmutable)
			t.Cleanup(func() { setFlags(t, at("b/a"), 0) })
		}, 0},
	} {
		t.Run(what, func(t *testing.T) {
			c := directories(t, test.directories...)
			at := func(name string) string { return filepath.Join(c.from, name) }
			check(t, os.Mkdir(at("many"), 0o755))
			for i := range 1000 {
				write(t, at(fmt.Sprintf("many/name-%04d", i)), strings.Repeat("x", i%3))
			}
			c.do(records.LiveRound)
			settle(t)
			c.do(records.LiveRound)
			test.change(t, at)
			if stats := c.do(records.LiveRound); stats.SentBytes > test.most {
				t.Errorf("%d bytes were sent, want at most %d: %+v", stats.SentBytes, test.most, stats)
			}
			c.do(records.FinalRound)
			c.do(records.LastRound)
			c.compare()
			if stats := c.source.stats; stats.ChangedEntries != 0 {
				t.Errorf("the last round changed something: %+v", stats)
			}
		})
	}
}

// TestDirectoriesThatMoveWithHardLinks has names of one inode inside and outside of the directories.
func TestDirectoriesThatMoveWithHardLinks(t *testing.T) {
	c := directories(t, "a", "b", "c", "d")
	at := func(name string) string { return filepath.Join(c.from, name) }
	for i, pair := range [][2]string{{"a/file-0", "b/link"}, {"c/file-0", "d/link"}, {"c/file-1", "c/link"}} {
		check(t, os.Link(at(pair[0]), at(pair[1])))
		t.Logf("%d: %v", i, pair)
	}
	c.do(records.LiveRound)
	settle(t)
	c.do(records.LiveRound)
	check(t, os.Rename(at("a"), at("e")))
	check(t, os.RemoveAll(at("c")))
	check(t, os.Rename(at("b"), at("c")))
	if stats := c.do(records.LiveRound); stats.SentBytes > 0 {
		t.Errorf("%d bytes were sent: %+v", stats.SentBytes, stats)
	}
	check(t, os.Link(at("e/file-0"), at("third")))
	check(t, os.Remove(at("c/link")))
	c.end()
}
