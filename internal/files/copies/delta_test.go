package copies

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/files/records"
)

// noise returns incompressible content.
func noise(size int, seed uint64) string {
	source := rand.NewChaCha8([32]byte{byte(seed)})
	p := make([]byte, size)
	_, _ = source.Read(p)
	return string(p)
}

func TestWhatIsSentOfALargeFile(t *testing.T) {
	const size = 24 << 20
	root := scratch(t)
	path := filepath.Join(root, "large")
	write(t, path, noise(size, 1))
	write(t, filepath.Join(root, "linked"), noise(size/8, 2))
	check(t, os.Link(filepath.Join(root, "linked"), filepath.Join(root, "linked too")))
	c := startCopy(t, root)
	if s := c.do(records.LiveRound); s.SentBytes != size+size/8 {
		t.Errorf("the first round sent %d bytes", s.SentBytes)
	}
	for _, step := range []struct {
		what   string
		most   int64
		change func()
	}{
		{"nothing", 0, func() {}},
		{"one byte", 256 << 10, func() { overwrite(t, path, 10_000_000, "?") }},
		{"the same byte again", 0, func() { overwrite(t, path, 10_000_000, "?") }},
		{"bytes in two places", 512 << 10,
			func() { overwrite(t, path, 5, "?"); overwrite(t, path, size-5, "?") }},
		{"appended", 1<<20 + 256<<10, func() { overwrite(t, path, size, noise(1<<20, 3)) }},
		{"inserted at the beginning", 512 << 10, func() { insert(t, path, "a few words") }},
		{"halves swapped", 512 << 10, func() { rotate(t, path) }},
		{"shortened", 256 << 10, func() { check(t, os.Truncate(path, size/2+1)) }},
		{"replaced by a copy with a change", 256 << 10, func() { replace(t, path) }},
		{"inserted where there are links", size/8 + 1,
			func() { insert(t, filepath.Join(root, "linked"), "x") }},
		{"one byte where there are links", 256 << 10,
			func() { overwrite(t, filepath.Join(root, "linked"), 1_000_000, "x") }},
		{"renamed", 0, func() { check(t, os.Rename(path, filepath.Join(root, "another name"))) }},
	} {
		step.change()
		if s := c.do(records.LiveRound); s.SentBytes > step.most {
			t.Errorf("%s: %d bytes were sent, want at most %d", step.what, s.SentBytes, step.most)
		}
	}
	c.end()
}

// rotate swaps the halves of a file.
func rotate(t *testing.T, path string) {
	t.Helper()
	p, err := os.ReadFile(path)
	check(t, err)
	write(t, path, string(p[len(p)/2:])+string(p[:len(p)/2]))
}

// replace acts like careful programs: it writes a new file, and renames it.
func replace(t *testing.T, path string) {
	t.Helper()
	p, err := os.ReadFile(path)
	check(t, err)
	write(t, path+".new", strings.Replace(string(p), string(p[3_000_000:3_000_010]), "0123456789", 1))
	check(t, os.Rename(path+".new", path))
}
