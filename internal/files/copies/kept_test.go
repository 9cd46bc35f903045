package copies

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
	"github.com/godwit/godwit/internal/files/records"
)

// give ends a copy as if it had broken off, and moves its partial result aside.
func (c *copying) give() (kept string) {
	c.t.Helper()
	kept = scratch(c.t)
	check(c.t, files.MoveContent(c.to, kept))
	check(c.t, c.mirror.Undo())
	return kept
}

// goOn begins another attempt with the partial result of an earlier one. It returns the size of the
// mirror's report.
func goOn(t *testing.T, tree, kept string) (c *copying, told int) {
	t.Helper()
	c = startCopy(t, tree)
	check(t, c.mirror.Adopt(context.Background(), []files.Tree{{Kind: files.Writable, Path: kept}}))
	var stream bytes.Buffer
	check(t, c.mirror.Have(context.Background(), &stream, c.source.Key(), scratch(t), 2))
	told = stream.Len()
	check(t, c.source.Resume(context.Background(), &stream, files.Limits{Bytes: 1 << 20, Entries: 1000}))
	if left, err := os.ReadDir(kept); err != nil || len(left) != 0 {
		t.Errorf("left aside: %v %v", left, err)
	}
	return c, told
}

func TestABrokenCopyGoesOn(t *testing.T) {
	root := awkward(t)
	c := startCopy(t, root)
	first := c.do(records.LiveRound)
	again, told := goOn(t, root, c.give())
	second := again.do(records.LiveRound)
	if second.SentBytes > 100 || second.KeptBytes < first.SentBytes-100 || told > 8<<10 {
		t.Errorf("%d bytes are sent, %d were kept, and %d in %d told, of %d", second.SentBytes,
			second.KeptBytes, again.sent, told, first.SentBytes)
	}
	settle(t)
	again.do(records.LiveRound)
	settle(t)
	if third := again.do(records.LiveRound); third.SentBytes != 0 || third.ChangedEntries != 0 ||
		third.KeptBytes != 0 {
		t.Errorf("when nothing has changed: %+v", third)
	}
	again.end()
}

// TestABrokenCopyGoesOnFromAnywhere interrupts a round at many places.
func TestABrokenCopyGoesOnFromAnywhere(t *testing.T) {
	root := awkward(t)
	stream := send(t, files.Tree{Kind: files.Writable, Path: root})
	for i := range 40 {
		length := len(stream) * i / 40
		if i%4 == 1 {
			length = i * 100 // where the small ones are
		}
		c := startCopy(t, root)
		if _, err := c.mirror.Round(context.Background(), bytes.NewReader(stream[:length])); err == nil {
			t.Fatal("a round that was cut off is taken for whole")
		}
		check(t, os.MkdirAll(c.to, 0o700)) // possibly nothing has come
		again, _ := goOn(t, root, c.give())
		stats := again.do(records.LiveRound)
		const block = 2 << 20 // the received data may end in the middle of a block
		if want := max(0, int64(length)-block); stats.KeptBytes < want ||
			stats.SentBytes > int64(len(stream))-want {
			t.Errorf("cut at %d of %d: %d are kept, and %d sent", length, len(stream), stats.KeptBytes,
				stats.SentBytes)
		}
		again.end()
	}
}

// TestChangesBetweenAttempts makes every kind of change to the container's files between a broken copy and
// the next one.
func TestChangesBetweenAttempts(t *testing.T) {
	for i, name := range slices.Sorted(maps.Keys(changes(nil))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := awkward(t)
			c := startCopy(t, root)
			c.do(records.LiveRound)
			kept := c.give()
			changes(func(name string) string { return filepath.Join(root, name) })[name](t)
			again, _ := goOn(t, root, kept)
			if i%2 == 0 {
				again.do(records.LiveRound)
			}
			again.end()
		})
	}
}

// TestAnythingMayHappenToWhatWasKept damages the partial result, as crashes and people do.
func TestAnythingMayHappenToWhatWasKept(t *testing.T) {
	victim := filepath.Join(scratch(t), "victim")
	for what, damage := range map[string]func(t *testing.T, at func(string) string){
		"torn": func(t *testing.T, at func(string) string) { check(t, os.Truncate(at("large"), 2_000_003)) },
		"zeros": func(t *testing.T, at func(string) string) {
			overwrite(t, at("large"), 1<<20, strings.Repeat("\x00", 70_000))
		},
		"a byte": func(t *testing.T, at func(string) string) { overwrite(t, at("small"), 1, "x") },
		"a byte of much": func(t *testing.T,
			at func(string) string) {
			overwrite(t, at("large"), 3_000_000, "x")
		},
		"longer": func(t *testing.T, at func(string) string) { check(t, os.Truncate(at("large"), 9<<20)) },
		"hole":   func(t *testing.T, at func(string) string) { punch(t, at("large"), 1<<20, 1<<20) },
		"more":   func(t *testing.T, at func(string) string) { write(t, at("nobody knows"), "x") },
		"more directories": func(t *testing.T, at func(string) string) {
			check(t, os.MkdirAll(at("nobody/knows/these"), 0o700))
			write(t, at("nobody/knows/these/x"), "x")
		},
		"gone": func(t *testing.T, at func(string) string) { check(t, os.RemoveAll(at("dir"))) },
		"link out": func(t *testing.T, at func(string) string) {
			check(t, os.Remove(at("large")))
			check(t, os.Symlink(victim, at("large")))
		},
		"link out to a directory": func(t *testing.T, at func(string) string) {
			check(t, os.RemoveAll(at("dir")))
			check(t, os.Symlink(filepath.Dir(victim), at("dir")))
		},
		"linked to another": func(t *testing.T, at func(string) string) {
			check(t, os.Remove(at("small")))
			check(t, os.Link(at("large"), at("small")))
		},
		"kinds swapped": func(t *testing.T, at func(string) string) {
			check(t, unix.Renameat2(unix.AT_FDCWD, at("small"), unix.AT_FDCWD, at("dir"),
				unix.RENAME_EXCHANGE))
		},
		"files swapped": func(t *testing.T, at func(string) string) {
			check(t, unix.Renameat2(unix.AT_FDCWD, at("small"), unix.AT_FDCWD, at("large"),
				unix.RENAME_EXCHANGE))
		},
		"locked": func(t *testing.T, at func(string) string) {
			setFlags(t, at("large"), fsys.FlagImmutable)
			setFlags(t, at("dir"), fsys.FlagImmutable)
			setFlags(t, at("."), fsys.FlagAppend)
		},
		"attributes": func(t *testing.T, at func(string) string) {
			check(t, unix.Setxattr(at("dir"), "system.posix_acl_default", acl(7), 0))
			check(t, unix.Setxattr(at("large"), "user.more", []byte("x"), 0))
			for _, name := range []string{"large", "dir"} {
				check(t, unix.Setxattr(at(name), "trusted.overlay.origin", []byte("handle"), 0))
				check(t, unix.Setxattr(at(name), "trusted.overlay.opaque", []byte("y"), 0))
			}
			check(t, os.Chown(at("large"), 99, 99))
			check(t, os.Chmod(at("dir"), 0o2777))
		},
	} {
		t.Run(what, func(t *testing.T) {
			root := awkward(t)
			write(t, victim, "untouched")
			c := startCopy(t, root)
			c.do(records.LiveRound)
			kept := c.give()
			damage(t, func(name string) string { return filepath.Join(kept, name) })
			again, _ := goOn(t, root, kept)
			again.do(records.LiveRound)
			again.end()
			if content, err := os.ReadFile(victim); err != nil || string(content) != "untouched" {
				t.Errorf("what is outside has %q, %v", content, err)
			}
		})
	}
}

// TestSeveralAttempts breaks off again and again, and adds up the sent bytes.
func TestSeveralAttempts(t *testing.T) {
	root := awkward(t)
	var kept string
	sent, all := int64(0), int64(0)
	for i := range 6 {
		c := startCopy(t, root)
		if kept != "" {
			c, _ = goOn(t, root, kept)
		}
		var stream bytes.Buffer
		stats, err := c.source.round(context.Background(), &stream, records.LiveRound, nil)
		check(t, err)
		all = max(all, stats.SentBytes)
		part := int64(1500 << 10)
		if i == 5 {
			part = 1 << 30
		}
		in := io.LimitReader(&stream, part)
		_, err = c.mirror.Round(context.Background(), in)
		if whole := stats.SentBytes < part; whole != (err == nil) {
			t.Fatalf("attempt %d: %v", i, err)
		}
		sent += min(part, stats.SentBytes)
		if err == nil {
			c.end()
			break
		}
		kept = c.give()
	}
	if sent > all+all/2 {
		t.Errorf("%d bytes were sent in all, of %d", sent, all)
	}
}

func TestWhatWasKeptIsNotMoreThanIsAllowed(t *testing.T) {
	kept := scratch(t)
	write(t, filepath.Join(kept, "f"), strings.Repeat("x", 100_000))
	for _, limits := range []files.Limits{{Bytes: 50_000}, {Entries: 0, Bytes: 1}} {
		m := NewMirror(into(scratch(t)), limits)
		if err := m.Adopt(context.Background(), []files.Tree{{Kind: files.Writable,
			Path: kept}}); err == nil {
			t.Errorf("%+v: it is adopted", limits)
		}
		check(t, files.MoveContent(filepath.Join(filepath.Dir(m.b.trees.all[0].path), "writable-"), kept))
		if _, err := m.Round(context.Background(), bytes.NewReader(nil)); err == nil {
			t.Error("a mirror that has failed takes rounds")
		}
		check(t, m.Undo())
	}
}

func TestAMirrorThatHasNothing(t *testing.T) {
	root := awkward(t)
	c := startCopy(t, root)
	var stream bytes.Buffer
	check(t, c.mirror.Have(context.Background(), &stream, c.source.Key(), scratch(t), 2))
	check(t, c.source.Resume(context.Background(), &stream, files.Limits{Bytes: 1 << 20, Entries: 1000}))
	c.do(records.LiveRound)
	c.end()
}

// telling returns a mirror's report of a tree.
func telling(t testing.TB, write func(k *keptWriter)) []byte {
	t.Helper()
	var stream bytes.Buffer
	out, err := records.NewBlockWriter(&stream, nil)
	if err != nil {
		t.Fatal(err)
	}
	k := &keptWriter{Encoder: records.Encoder{Out: out}}
	write(k)
	if err := errors.Join(k.Emit(), out.Finish()); err != nil {
		t.Fatal(err)
	}
	return stream.Bytes()
}

func (k *keptWriter) begin(name string) {
	k.Kind(keptTree)
	k.Text(string(files.Writable))
	k.Text(name)
}
func (k *keptWriter) dir(depth uint64, name string) {
	k.Kind(keptDirectory)
	k.Number(depth)
	k.Text(name)
}
func (k *keptWriter) sub(name string) { k.Kind(keptBelow); k.Text(name) }
func (k *keptWriter) small(name string, size uint64) {
	k.Kind(keptFile)
	k.Text(name)
	k.Number(size)
	k.Scratch = append(append(k.Scratch, byte(manifest.ContentDigest)), make([]byte, 16)...)
}
func (k *keptWriter) large(name string, size uint64, pieces ...uint64) {
	k.Kind(keptFile)
	k.Text(name)
	k.Number(size)
	k.Scratch = append(k.Scratch, byte(manifest.ContentList))
	k.Number(uint64(len(pieces)))
	for _, p := range pieces {
		if k.Number(p); p&1 == 0 {
			k.Scratch = append(k.Scratch, make([]byte, 16)...)
		}
	}
}
func (k *keptWriter) close(directories, files uint64) {
	k.Kind(keptEnd)
	k.Number(directories)
	k.Number(files)
}

func honest(k *keptWriter) {
	k.begin("")
	k.dir(0, "")
	k.sub("d")
	k.small("f", 5)
	k.large("g", 300, 100<<1, 150<<1|1, 50<<1)
	k.dir(1, "d")
	k.small("f", 5)
	k.close(2, 3)
}

func TestLiesAboutWhatThereIs(t *testing.T) {
	resume := func(t *testing.T, stream []byte) error {
		s, err := NewSource(Config{Trees: []files.Tree{{Kind: files.Writable, Path: scratch(t)}},
			Dir: scratch(t)})
		check(t, err)
		defer s.Close()
		err = s.Resume(context.Background(), bytes.NewReader(stream), files.Limits{Bytes: 1 << 20,
			Entries: 20})
		if _, failed := s.Round(context.Background(), io.Discard, nil); (failed == nil) != (err == nil) {
			t.Errorf("a round after %v: %v", err, failed)
		}
		return err
	}
	good := telling(t, honest)
	check(t, resume(t, good))
	for length := range good {
		if err := resume(t, good[:length]); !errors.Is(err, records.ErrCorrupt) {
			t.Errorf("cut at %d: %v", length, err)
		}
		damaged := bytes.Clone(good)
		damaged[length] ^= 1 << (length % 8)
		if err := resume(t, damaged); err == nil {
			t.Errorf("a bit of byte %d is wrong, and it was accepted", length)
		}
	}
	for what, write := range map[string]func(k *keptWriter){
		"nothing":      func(*keptWriter) {},
		"a round":      func(k *keptWriter) { k.Kind(records.RecordRound) },
		"no tree":      func(k *keptWriter) { k.dir(0, ""); k.close(1, 0) },
		"another tree": func(k *keptWriter) { k.begin("x"); k.dir(0, ""); k.close(1, 0) },
		"a tree twice": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.begin("")
			k.dir(0,
				"")
			k.close(2, 0)
		},
		"no root":          func(k *keptWriter) { k.begin(""); k.close(0, 0) },
		"root with a name": func(k *keptWriter) { k.begin(""); k.dir(0, "x"); k.close(1, 0) },
		"two roots":        func(k *keptWriter) { k.begin(""); k.dir(0, ""); k.dir(0, ""); k.close(2, 0) },
		"file outside": func(k *keptWriter) {
			k.begin("")
			k.small("f", 1)
			k.dir(0, "")
			k.close(1,
				1)
		},
		"too deep": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.sub("d")
			k.dir(2,
				"d")
			k.close(2, 0)
		},
		"not announced": func(k *keptWriter) { k.begin(""); k.dir(0, ""); k.dir(1, "d"); k.close(2, 0) },
		"does not come": func(k *keptWriter) { k.begin(""); k.dir(0, ""); k.sub("d"); k.close(1, 0) },
		"comes as another": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.sub("d")
			k.dir(1,
				"e")
			k.close(2, 0)
		},
		"names in no order": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.small("b", 1)
			k.small("a",
				1)
			k.close(1, 2)
		},
		"a name twice": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.sub("a")
			k.small("a", 1)
			k.dir(1, "a")
			k.close(2, 1)
		},
		"..": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.sub("..")
			k.dir(1,
				"..")
			k.close(2, 0)
		},
		"a/b": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.small("a/b", 1)
			k.close(1,
				1)
		},
		"too short pieces": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.large("a",
				10, 3<<1)
			k.close(1, 1)
		},
		"too long pieces": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.large("a",
				10, 11<<1)
			k.close(1, 1)
		},
		"empty piece": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.large("a", 10, 10<<1, 0)
			k.close(1,
				1)
		},
		"pieces past 2^63": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.large("a", 1<<63-1, 1<<63-1, 1<<63-1, 1<<63-1)
			k.close(1, 1)
		},
		"too many names":      func(k *keptWriter) { k.begin(""); k.dir(0, ""); many(k, 20); k.close(1, 20) },
		"wrong counts":        func(k *keptWriter) { k.begin(""); k.dir(0, ""); k.close(1, 1) },
		"something behind it": func(k *keptWriter) { honest(k); k.small("x", 1) },
		"unknown content": func(k *keptWriter) {
			k.begin("")
			k.dir(0, "")
			k.small("a", 1)
			k.Scratch[len(k.Scratch)-17] = 9
			k.close(1, 1)
		},
	} {
		if err := resume(t, telling(t, write)); !errors.Is(err, records.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check(t,
		resume(t, telling(t, func(k *keptWriter) { k.begin(""); k.dir(0, ""); many(k, 19); k.close(1, 19) })))
}

func many(k *keptWriter, n int) {
	for i := range n {
		k.small(string(rune('a'+i)), 1)
	}
}

// TestClaimsThatAreNotTrueBreakTheCopyOnly lets a mirror report files and directories that it does not
// have.
func TestClaimsThatAreNotTrueBreakTheCopyOnly(t *testing.T) {
	root := scratch(t)
	check(t, os.Mkdir(filepath.Join(root, "d"), 0o755))
	for _, name := range []string{"f", "g", "d/f"} {
		write(t, filepath.Join(root, name), strings.Repeat("12345", 60))
	}
	c := startCopy(t, root)
	check(t, c.source.Resume(context.Background(), bytes.NewReader(telling(t, honest)),
		files.Limits{Bytes: 1 << 20, Entries: 1000}))
	var stream bytes.Buffer
	_, err := c.source.Round(context.Background(), &stream, nil)
	check(t, err)
	if _, err := c.mirror.Round(context.Background(), &stream); !errors.Is(err, records.ErrCorrupt) {
		t.Errorf("the mirror has nothing of what it told, and says %v", err)
	}
	check(t, c.mirror.Undo())
}

// FuzzKept gives a source arbitrary data as its mirror's report.
func FuzzKept(f *testing.F) {
	body := func(write func(k *keptWriter)) []byte {
		k := &keptWriter{}
		write(k)
		return k.Scratch
	}
	f.Add([]byte{})
	f.Add(body(honest))
	f.Add(body(func(k *keptWriter) {
		k.begin("")
		k.dir(0, "")
		many(k, 3)
		k.large("z", 1<<40, 1<<41|1)
		k.close(1, 4)
	}))
	root := f.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(root, "d"), 0o755),
		os.WriteFile(filepath.Join(root, "d", "f"), []byte("12345"), 0o600),
		os.WriteFile(filepath.Join(root, "g"), bytes.Repeat([]byte("x"), 200_000), 0o600)); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		stream := telling(t, func(k *keptWriter) { k.Scratch = append(k.Scratch, body...) })
		s, err := NewSource(Config{Trees: []files.Tree{{Kind: files.Writable, Path: root}}, Dir: root,
			Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if s.Resume(context.Background(), bytes.NewReader(stream),
			files.Limits{Bytes: 1 << 20, Entries: 1000}) != nil {
			return
		}
		var round bytes.Buffer
		if _, err := s.Round(context.Background(), &round, nil); err != nil {
			t.Fatalf("a round: %v", err)
		}
		if _, err := records.ReadRound(context.Background(), &round, &transcript{}); err != nil {
			t.Fatalf("what is sent breaks the rules: %v", err)
		}
	})
}
