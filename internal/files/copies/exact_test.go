package copies

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/records"
)

func inodeOf(t *testing.T, path string) *unix.Stat_t {
	t.Helper()
	var stat unix.Stat_t
	check(t, unix.Stat(path, &stat))
	return &stat
}

// TestWrittenThroughAMapping writes to pages that are already dirty, which does not change the file's
// times.
func TestWrittenThroughAMapping(t *testing.T) {
	root := scratch(t)
	path := filepath.Join(root, "mapped")
	write(t, path, strings.Repeat("before", 100_000))
	c := startCopy(t, root)
	mapped := compare.Mapped{Inodes: map[uint64]bool{inodeOf(t, path).Ino: true}}
	c.source.config.Mapped = func(context.Context) (compare.Mapped, error) { return mapped, nil }

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 600_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	m[70_000] = 'x'
	settle(t)
	c.do(records.LiveRound)
	before, unseen := inodeOf(t, path), 0
	for round, value := range "abcdefghijklmnopqrstuvwxyz" {
		if m[70_000] = byte(value); unseen == 2 {
			break
		}
		if now := inodeOf(t, path); now.Ctim == before.Ctim && now.Mtim == before.Mtim {
			unseen++
		} else {
			before = now // the page was written back meanwhile, so the kernel has noticed this write
		}
		settle(t)
		c.do(records.LiveRound)
		if content, err := os.ReadFile(filepath.Join(c.to, "mapped")); err != nil ||
			content[70_000] != byte(value) {
			t.Errorf("round %d does not have what was written through the mapping, %v", round, err)
		}
	}
	if unseen < 2 {
		t.Fatal("the kernel has moved a time whenever something was written: this test proves nothing")
	}
	check(t, unix.Munmap(m))
	mapped = compare.Mapped{} // the mapping is gone, but existed at the read
	c.end()
}

// TestChangedWhileCopied changes files, names and directories in the middle of a round.
func TestChangedWhileCopied(t *testing.T) {
	for what, change := range map[string]func(t *testing.T, at func(string) string){
		"shorter": func(t *testing.T,
			at func(string) string) {
			check(t, os.Truncate(at("b-large"), 1000))
		},
		"longer": func(t *testing.T,
			at func(string) string) {
			check(t, os.Truncate(at("b-large"), 20<<20))
		},
		"rewritten": func(t *testing.T,
			at func(string) string) {
			overwrite(t, at("b-large"), 7<<20, "changed")
		},
		"punched": func(t *testing.T, at func(string) string) { punch(t, at("b-large"), 0, 6<<20) },
		"renamed": func(t *testing.T,
			at func(string) string) {
			check(t, os.Rename(at("b-large"), at("a-first")))
		},
		"renamed to later": func(t *testing.T,
			at func(string) string) {
			check(t, os.Rename(at("a"), at("z")))
		},
		"removed": func(t *testing.T, at func(string) string) { check(t, os.Remove(at("b-large"))) },
		"replaced": func(t *testing.T, at func(string) string) {
			write(t, at("new"), "new")
			check(t, os.Rename(at("new"), at("b-large")))
		},
		"others": func(t *testing.T, at func(string) string) {
			check(t, os.RemoveAll(at("c/d")))
			check(t, os.Remove(at("c/e")))
			check(t, os.Mkdir(at("c/e"), 0o700))
			check(t, os.Link(at("c/f"), at("c/g")))
			check(t, os.Rename(at("y"), at("c/d")))
		},
		"a directory moves over": func(t *testing.T, at func(string) string) {
			check(t, os.RemoveAll(at("c")))
			check(t, os.Rename(at("y"), at("c")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			root := scratch(t)
			at := func(name string) string { return filepath.Join(root, name) }
			write(t, at("a"), "a")
			write(t, at("b-large"), strings.Repeat("12345678", 1<<20))
			check(t, os.MkdirAll(at("c/d/inner"), 0o755))
			check(t, os.MkdirAll(at("y/in"), 0o755))
			for i := range 50 {
				write(t, at(fmt.Sprintf("c/d/inner/%d", i)), strings.Repeat("x", 100_000))
			}
			write(t, at("c/e"), "e")
			write(t, at("c/f"), "f")
			write(t, at("y/file"), "y")

			c := startCopy(t, root)
			r, w := io.Pipe()
			done := make(chan error, 1)
			go func() {
				_, err := c.source.Round(context.Background(), w, nil)
				w.CloseWithError(err)
				done <- err
			}()
			begin := make([]byte, 1<<20)
			_, err := io.ReadFull(r, begin) // the source is in the large file, and waits
			check(t, err)
			change(t, at)
			_, err = c.mirror.Round(context.Background(), io.MultiReader(bytes.NewReader(begin), r))
			check(t, err)
			check(t, <-done)
			c.end()
		})
	}
}

// TestTwentyGibibytes covers offsets beyond 32 bits and lists of chunks for a file of this size, mostly
// holes.
func TestTwentyGibibytes(t *testing.T) {
	root := scratch(t)
	path := filepath.Join(root, "large")
	f, err := os.Create(path)
	check(t, err)
	defer f.Close()
	check(t, f.Truncate(20<<30))
	for _, offset := range []int64{0, 4<<30 - 5000, 8 << 30, 20<<30 - 100_000} {
		_, err := f.WriteAt(bytes.Repeat([]byte("0123456789"), 10_000), offset)
		check(t, err)
	}
	c := startCopy(t, root)
	settle(t)
	c.do(records.LiveRound)
	overwrite(t, path, 8<<30+50_000, "!")
	settle(t)
	c.do(records.LiveRound)
	if c.sent > 1<<20 {
		t.Errorf("%d bytes were sent for one that changed", c.sent)
	}
	c.end()
}
