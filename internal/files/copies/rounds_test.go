package copies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// copying is a copy in rounds that a test executes step by step.
type copying struct {
	t      *testing.T
	source *Source
	mirror *Mirror
	from   string
	to     string
	sent   int64 // by the latest round, and in total
}

func startCopy(t *testing.T, tree string) *copying {
	t.Helper()
	c := &copying{t: t, from: tree}
	var err error
	c.source, err = NewSource(Config{Trees: []files.Tree{{Kind: files.Writable, Path: tree}}, Dir: scratch(t),
		Workers: 2})
	check(t, err)
	t.Cleanup(func() { check(t, c.source.Close()) })
	dir := scratch(t)
	c.to = filepath.Join(dir, "writable-")
	c.mirror = NewMirror(into(dir), files.Limits{})
	return c
}

func (c *copying) do(kind records.RoundKind) Stats {
	c.t.Helper()
	var stream bytes.Buffer
	stats, err := c.source.round(context.Background(), &stream, kind, nil)
	check(c.t, err)
	c.sent = int64(stream.Len())
	last, err := c.mirror.Round(context.Background(), &stream)
	check(c.t, err)
	if last != (kind == records.LastRound) || stream.Len() != 0 {
		c.t.Errorf("after a round of kind %d: last %v, %d bytes are left", kind, last, stream.Len())
	}
	return stats
}

func (c *copying) end() {
	c.t.Helper()
	c.do(records.FinalRound)
	c.do(records.LastRound)
	c.compare()
}

func (c *copying) compare() {
	c.t.Helper()
	same(c.t, without(snapshot(c.t, c.from, travels), "/half"), without(snapshot(c.t, c.to, nil), "/half"))
}

func travels(name string) bool {
	return name != "trusted.overlay.origin" && name != "trusted.overlay.impure" &&
		name != "trusted.overlay.nlink"
}

func TestRoundsOfATreeThatStaysAsItIs(t *testing.T) {
	c := startCopy(t, awkward(t))
	first := c.do(records.LiveRound)
	if first.Entries < 35 || first.SentBytes < 5<<20 {
		t.Errorf("first round: %+v", first)
	}
	for range 2 {
		settle(t)
		c.do(records.LiveRound)
	}
	quiet := c.do(records.LiveRound)
	if quiet.Entries < 35 || quiet.ChangedEntries != 0 || quiet.SentBytes != 0 || quiet.UnsettledFiles != 0 ||
		quiet.ReadBytes != 0 {
		t.Errorf("quiet round: %+v", quiet)
	}
	c.end()
}

// settle waits until the clock of files has advanced, so that earlier writes are settled.
func settle(t *testing.T) {
	t.Helper()
	var now, files unix.Timespec
	check(t, unix.ClockGettime(unix.CLOCK_REALTIME, &now))
	for deadline := time.Now().Add(10 * time.Second); files.Nano() <= now.Nano(); time.Sleep(
		time.Millisecond) {
		check(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &files))
		if time.Now().After(deadline) {
			t.Fatal("the clock of files stands still")
		}
	}
}

// changes returns the possible changes to a tree between two rounds. Each leaves the tree so that others
// may follow.
func changes(at func(string) string) map[string]func(t *testing.T) {
	return map[string]func(t *testing.T){
		"attributes of all kinds": func(t *testing.T) {
			check(t, os.Chmod(at("large"), 0o4701))
			check(t, os.Lchown(at("symlink"), 3, 4))
			check(t, unix.Setxattr(at("acl"), "user.new", []byte("v"), 0))
			check(t, unix.Removexattr(at("small"), "user.binary"))
			check(t, os.Chtimes(at("empty"), timeOf(1), timeOf(2)))
			check(t, os.Chmod(at("dir/sub"), 0o711))
			check(t, unix.Setxattr(at("dir"), "user.d", []byte("v"), 0))
			check(t, os.Chtimes(at("dir"), timeOf(5), timeOf(6)))
			check(t, os.Chmod(at("."), 0o711))
		},
		"names that come and go": func(t *testing.T) {
			write(t, at("dir/sub/new"), "new")
			check(t, os.MkdirAll(at("fresh/a/b/c"), 0o750))
			write(t, at("fresh/a/file"), "f")
			check(t, os.Mkdir(at("fresh/z"), 0o700))
			check(t, os.Remove(at("empty")))
			check(t, os.Remove(at("dir/up")))
			check(t, os.Symlink("other", at("dir/up")))
			check(t, os.Remove(at("block")))
			check(t, unix.Mknod(at("block"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 7))))
			check(t, os.Lchown(at("symlink-2"), 9, 9))
		},
		"immutable": func(t *testing.T) {
			clearFlags(t, at("immutable-dir"))
			write(t, at("immutable-dir/more"), "x")
			setFlags(t, at("immutable-dir"), fsys.FlagImmutable)
			clearFlags(t, at("immutable"))
			clearFlags(t, at("linked-immutable"))
		},
		"content in place":       func(t *testing.T) { overwrite(t, at("small"), 1, "E") },
		"content of a large one": func(t *testing.T) { overwrite(t, at("large"), 2_500_000, "changed") },
		"appended": func(t *testing.T) {
			overwrite(t, at("large"), 5<<20+4,
				strings.Repeat("more", 100_000))
		},
		"inserted":       func(t *testing.T) { insert(t, at("large"), "at the beginning") },
		"shorter":        func(t *testing.T) { check(t, os.Truncate(at("large"), 1_000_000)) },
		"much shorter":   func(t *testing.T) { check(t, os.Truncate(at("large"), 10)) },
		"longer":         func(t *testing.T) { check(t, os.Truncate(at("large"), 50<<20)) },
		"empty":          func(t *testing.T) { check(t, os.Truncate(at("small"), 0)) },
		"punched":        func(t *testing.T) { punch(t, at("large"), 1<<20, 1<<20) },
		"punched, small": func(t *testing.T) { punch(t, at("sparse"), 1<<20, 8192) },
		"filled": func(t *testing.T) {
			overwrite(t, at("sparse"), 3<<20,
				strings.Repeat("f", 200_000))
		},
		"removed tree": func(t *testing.T) { check(t, os.RemoveAll(at("dir"))) },
		"renamed":      func(t *testing.T) { check(t, os.Rename(at("large"), at("dir/moved"))) },
		"renamed in a ring": func(t *testing.T) {
			check(t, os.Rename(at("large"), at("x")))
			check(t, os.Rename(at("sparse"), at("large")))
			check(t, os.Rename(at("long-target"), at("sparse")))
			check(t, os.Rename(at("x"), at("long-target")))
		},
		"renamed, and another in its place": func(t *testing.T) {
			check(t, os.Rename(at("large"), at("a-log.1")))
			write(t, at("large"), strings.Repeat("new log", 1000))
		},
		"renamed out of what is removed": func(t *testing.T) {
			check(t, os.Rename(at("large"), at("dir/sub/x")))
		},
		"renamed and linked": func(t *testing.T) {
			check(t, os.Rename(at("large"), at("dir/x")))
			check(t, os.Link(at("dir/x"), at("y")))
		},
		"replaced by what was there": func(t *testing.T) { check(t, os.Rename(at("large"), at("sparse"))) },
		"renamed over":               func(t *testing.T) { check(t, os.Rename(at("acl"), at("small"))) },
		"swapped": func(t *testing.T) {
			check(t, unix.Renameat2(unix.AT_FDCWD, at("small"), unix.AT_FDCWD, at("large"),
				unix.RENAME_EXCHANGE))
		},
		"swapped kinds": func(t *testing.T) {
			check(t, unix.Renameat2(unix.AT_FDCWD, at("small"), unix.AT_FDCWD, at("dir"),
				unix.RENAME_EXCHANGE))
		},
		"moved tree": func(t *testing.T) { check(t, os.Rename(at("dir"), at("sticky/elsewhere"))) },
		"swapped trees": func(t *testing.T) {
			check(t, unix.Renameat2(unix.AT_FDCWD, at("dir"), unix.AT_FDCWD, at("opaque"),
				unix.RENAME_EXCHANGE))
		},
		"link to what has one name": func(t *testing.T) { check(t, os.Link(at("large"), at("dir/a-link"))) },
		"link before it":            func(t *testing.T) { check(t, os.Link(at("small"), at("a-link"))) },
		"link to what has more":     func(t *testing.T) { check(t, os.Link(at("third"), at("a-fourth"))) },
		"link to a fifo":            func(t *testing.T) { check(t, os.Link(at("fifo"), at("a-fifo"))) },
		"link removed":              func(t *testing.T) { check(t, os.Remove(at("dir/first"))) },
		"links but one removed": func(t *testing.T) {
			check(t, os.Remove(at("dir/first")))
			check(t, os.Remove(at("third")))
		},
		"all links removed": func(t *testing.T) {
			check(t, os.Remove(at("dir/first")))
			check(t, os.Remove(at("third")))
			check(t, os.Remove(at("dir/sub/second")))
		},
		"link broken": func(t *testing.T) {
			check(t, os.Remove(at("third")))
			write(t, at("third"),
				"alone")
		},
		"links renamed": func(t *testing.T) {
			check(t, os.Rename(at("third"), at("0")))
			check(t, os.Rename(at("dir/first"), at("~")))
		},
		"linked, content": func(t *testing.T) { overwrite(t, at("third"), 2, "NKE") },
		"linked, mode":    func(t *testing.T) { check(t, os.Chmod(at("third"), 0o604)) },
		"kind changed": func(t *testing.T) {
			check(t, os.Remove(at("small")))
			check(t, os.Mkdir(at("small"), 0o755))
			write(t, at("small/inside"), "x")
			check(t, os.RemoveAll(at("opaque")))
			check(t, unix.Mkfifo(at("opaque"), 0o600))
		},
		"made again": func(t *testing.T) {
			check(t, os.RemoveAll(at("dir")))
			check(t, os.MkdirAll(at("dir/sub"), 0o755))
			write(t, at("dir/first"), "another")
		},
	}
}

// TestEachChangeBetweenRounds makes each change once before a live round and, another time, right before
// the final one.
func TestEachChangeBetweenRounds(t *testing.T) {
	names := slices.Sorted(maps.Keys(changes(nil)))
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := awkward(t)
			at := func(name string) string { return filepath.Join(root, name) }
			c := startCopy(t, root)
			c.do(records.LiveRound)
			if i%2 == 0 { // The other half finds nothing settled.
				settle(t)
				c.do(records.LiveRound)
			}
			changes(at)[name](t)
			if i%3 != 0 {
				c.do(records.LiveRound)
			}
			c.end()
		})
	}
}

// TestChangesBesideALongDirectory makes changes before, behind and in a directory whose names are in
// several frames of the manifest.
func TestChangesBesideALongDirectory(t *testing.T) {
	root := scratch(t)
	at := func(name string) string { return filepath.Join(root, name) }
	for _, dir := range []string{"a", "long", "z"} {
		check(t, os.Mkdir(at(dir), 0o755))
		write(t, at(dir+"/file"), "before")
	}
	for i := range 1000 {
		write(t, at(fmt.Sprintf("long/%d", i)), "")
	}
	c := startCopy(t, root)
	c.do(records.LiveRound)
	settle(t)
	c.do(records.LiveRound)
	for _, dir := range []string{"a", "long", "z"} {
		write(t, at(dir+"/file"), "changed")
	}
	c.do(records.FinalRound)
	c.do(records.LastRound)
	c.compare()
}

// TestFilesOnWhichAProcessHasALease: they cannot be read before the process gives up the lease, and only
// live rounds can wait for that.
func TestFilesOnWhichAProcessHasALease(t *testing.T) {
	root := scratch(t)
	lease := leaser(t, root)
	write(t, filepath.Join(root, "early"), "early")
	write(t, filepath.Join(root, "known"), "before")
	write(t, filepath.Join(root, "large"), noise(2*inlineSize, 1))
	early, large := lease("early"), lease("large")
	c := startCopy(t, root)
	c.do(records.LiveRound)
	overwrite(t, filepath.Join(root, "known"), 0, "change")
	known := lease("known")
	c.do(records.LiveRound)
	if _, err := c.source.round(context.Background(), io.Discard, records.FinalRound, nil); !errors.Is(err,
		errLeased) {
		t.Errorf("in the freeze: %v", err)
	}
	known()
	c = startCopy(t, root)
	c.do(records.LiveRound)
	early()
	large()
	c.do(records.LiveRound)
	c.end()
}

// TestLeasedFilesOfSeveralNames: files have a lease when they are new, when they get an additional name,
// when a file with one name gets another, and when they are renamed.
func TestLeasedFilesOfSeveralNames(t *testing.T) {
	root := scratch(t)
	at := func(name string) string { return filepath.Join(root, name) }
	lease := leaser(t, root)
	for _, name := range []string{"several", "single", "moving", "big"} {
		write(t, at(name), name)
	}
	check(t, os.Link(at("several"), at("several-2")))
	write(t, at("big"), noise(2*inlineSize, 1))
	c := startCopy(t, root)
	c.do(records.LiveRound)
	settle(t)
	c.do(records.LiveRound)
	write(t, at("new"), "new")
	for name, further := range map[string]string{"new": "new-2", "several": "several-3", "single": "single-2",
		"big": "big-2"} {
		check(t, os.Link(at(name), at(further)))
	}
	check(t, os.Rename(at("moving"), at("moved")))
	var release []func()
	for _, name := range []string{"new", "several", "single", "moved", "big"} {
		overwrite(t, at(name), 1, "other")
		release = append(release, lease(name))
	}
	c.do(records.LiveRound)
	c.do(records.LiveRound)
	for _, end := range release {
		end()
	}
	c.do(records.LiveRound)
	c.end()
}

// TestLeasedFilesInAFullBatch: the files are new, and so many that their records do not wait beside others.
func TestLeasedFilesInAFullBatch(t *testing.T) {
	root := scratch(t)
	for i := range 2 * batchBytes / inlineSize {
		write(t, filepath.Join(root, fmt.Sprintf("a%02d", i)), noise(inlineSize, uint64(i)))
	}
	write(t, filepath.Join(root, "leased"), "leased")
	release := leaser(t, root)("leased")
	c := startCopy(t, root)
	c.do(records.LiveRound)
	release()
	c.do(records.LiveRound)
	c.end()
}

// leaser takes write leases on files, and the returned function releases them.
func leaser(t *testing.T, root string) func(name string) (release func()) {
	return func(name string) func() {
		t.Helper()
		fd := must(unix.Open(filepath.Join(root, name), unix.O_RDWR, 0))
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
		check(t, err)
		return func() { unix.Close(fd) }
	}
}
