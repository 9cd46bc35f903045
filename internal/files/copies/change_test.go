package copies

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/fsys"
)

func overwrite(t *testing.T, path string, offset int64, content string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteAt([]byte(content), offset)
	check(t, err)
	check(t, f.Close())
}

func insert(t *testing.T, path, content string) {
	t.Helper()
	before, err := os.ReadFile(path)
	check(t, err)
	check(t, os.WriteFile(path, append([]byte(content), before...), 0o644))
}

func punch(t *testing.T, path string, offset, length int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	check(t, err)
	check(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length))
	check(t, f.Close())
}

func timeOf(seconds int64) time.Time { return time.Unix(seconds, 123) }

func clearFlags(t *testing.T, path string) {
	t.Helper()
	fd := must(unix.Open(path, unix.O_RDONLY, 0))
	defer unix.Close(fd)
	fsys.Unlock(fd)
}
