package copies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/records"
)

// inUse reports how much memory is in use.
func inUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestMemoryForDeepTrees has paths of 200 KB: one for each of the directories along them would be 80 MB.
func TestMemoryForDeepTrees(t *testing.T) {
	root := shaft(t, 800, strings.Repeat("large", 500_000))
	source, err := NewSource(Config{Trees: []files.Tree{{Kind: files.Writable, Path: root}}, Dir: scratch(t),
		Workers: 2})
	check(t, err)
	defer func() { check(t, source.Close()) }()
	before := inUse()
	pieces := 0
	_, err = source.Round(context.Background(), writerFunc(func(p []byte) (int, error) {
		pieces++
		if now := inUse(); now > before+32<<20 {
			t.Errorf("%d MiB are in use, %d before", now>>20, before>>20)
		}
		return len(p), nil
	}), nil)
	check(t, err)
	if pieces < 4 {
		t.Error("the round was over before memory was looked at")
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// shaft makes nested directories, with a file in the last.
func shaft(t *testing.T, levels int, content string) string {
	t.Helper()
	root := scratch(t)
	fd := must(unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0))
	name := strings.Repeat("d", 250)
	for range levels {
		check(t, unix.Mkdirat(fd, name, 0o755))
		next := must(unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0))
		unix.Close(fd)
		fd = next
	}
	file := os.NewFile(uintptr(must(unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o600))), "file")
	_, err := file.WriteString(content)
	check(t, errors.Join(err, file.Close(), unix.Close(fd)))
	return root
}

func TestPathsThatAreTooLong(t *testing.T) {
	root := shaft(t, maxPath/250+1, "")
	err := sendTrees(context.Background(), io.Discard, []files.Tree{{Kind: files.Writable, Path: root}}, nil)
	if err == nil || !strings.Contains(err.Error(), "longer than") || len(err.Error()) > 1000 {
		t.Errorf("got %.2000v", err)
	}
}

// TestNothingIsHeldAfterAnError breaks rounds in a directory with so many others in it that their names are
// on disk.
func TestNothingIsHeldAfterAnError(t *testing.T) {
	for _, again := range []bool{false, true} {
		root, dir := scratch(t), scratch(t)
		source, err := NewSource(Config{Trees: []files.Tree{{Kind: files.Writable, Path: root}}, Dir: dir,
			Workers: 1})
		check(t, err)
		if again {
			_, err := source.Round(context.Background(), &bytes.Buffer{}, nil)
			check(t, err)
		}
		for i := range 1200 {
			check(t, os.Mkdir(filepath.Join(root, fmt.Sprintf("%s%04d", strings.Repeat("d", 246), i)), 0o755))
		}
		crowd(t, root)
		broken := errors.New("broken")
		w := &hooked{hook: func() error { return broken }}
		if _, err := source.Round(context.Background(), w, nil); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		check(t, source.Close())
		if left := openIn(t, dir); left != nil {
			t.Errorf("these are still open: %v", left)
		}
	}
}

// openIn lists the open files of this process below a directory.
func openIn(t *testing.T, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil &&
			strings.HasPrefix(target, dir+"/") {
			found = append(found, target)
		}
	}
	return found
}

// TestALargeFileIsNotMadeAnewForALittle writes a part of the file's content once more, as with zeros in
// many files.
func TestALargeFileIsNotMadeAnewForALittle(t *testing.T) {
	const size, piece = 48 << 20, 700_000
	root := scratch(t)
	path := filepath.Join(root, "file")
	content := noise(size, 1)
	write(t, path, content)
	c := startCopy(t, root)
	c.do(records.LiveRound)
	before := inodeOf(t, filepath.Join(c.to, "file")).Ino
	overwrite(t, path, size/2, content[1<<20:1<<20+piece])
	if stats := c.do(records.LiveRound); stats.SentBytes < piece || stats.SentBytes > 2*piece {
		t.Errorf("%+v", stats)
	}
	if inodeOf(t, filepath.Join(c.to, "file")).Ino != before {
		t.Error("the file was made anew")
	}
	c.end()
}
