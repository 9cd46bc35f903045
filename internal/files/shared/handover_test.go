package shared

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
)

// writerArgument makes the test program a process that writes to a file in ways that the kernel may buffer.
const writerArgument = "shared-test-writer"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == writerArgument {
		if err := write(os.Args[2]); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

const writerBytes = 1 << 20

// write writes through a mapping and never syncs; then it stands still, as in a freeze.
func write(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err == nil {
		err = unix.Ftruncate(fd, writerBytes)
	}
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(fd, 0, writerBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(memory, bytes.Repeat([]byte("w"), writerBytes))
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGSTOP)
}

// startWriter starts the process and returns when it stands still.
func startWriter(t *testing.T, path string) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", writerArgument, path)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	await.True(t, "the writer to stand still", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat")
		return err == nil && bytes.Contains(stat, []byte(") T "))
	})
	return cmd.Process.Pid
}

// TestHandOver writes on one node and reads on another, whose file system keeps its cached data whatever
// happens.
func TestHandOver(t *testing.T) {
	t.Parallel()
	r := newRemote(t, "kernel_cache")
	a, b := r.mounts[0], r.mounts[1]
	must(t, os.WriteFile(filepath.Join(a, "kept"), bytes.Repeat([]byte("1"), 5000), 0o600))
	read := func() string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(b, "kept"))
		must(t, err)
		return string(content[:1])
	}
	if got := read(); got != "1" {
		t.Fatalf("read %q", got)
	}
	must(t, os.WriteFile(filepath.Join(a, "kept"), bytes.Repeat([]byte("2"), 5000), 0o600))
	pid := startWriter(t, filepath.Join(a, "mapped"))
	must(t, Release(t.Context(), a, []int{pid}))
	if content, err := os.ReadFile(filepath.Join(r.server, "mapped")); err != nil ||
		!bytes.Equal(content, bytes.Repeat([]byte("w"), writerBytes)) {
		t.Errorf("what was mapped is not all at the server: %d bytes, %v", len(content), err)
	}
	must(t, Take(b))
	if got := read(); got != "2" {
		t.Errorf("what it had cached is still read: %q", got)
	}
	if content, err := os.ReadFile(filepath.Join(b, "mapped")); err != nil || len(content) != writerBytes {
		t.Errorf("at the other node: %d bytes, %v", len(content), err)
	}
}

func TestHandOverLocal(t *testing.T) {
	dir := t.TempDir()
	pid := startWriter(t, filepath.Join(dir, "locked"))
	must(t, Release(t.Context(), dir, []int{pid}))
	must(t, Take(dir))
	held, err := Locked(dir, []int{pid, 1 << 30})
	must(t, err)
	if want := []string{filepath.Join(dir, "locked")}; !slices.Equal(held, want) {
		t.Errorf("locks: %v, want %v", held, want)
	}
	if held, err := Locked("/proc", []int{pid}); err != nil || len(held) > 0 {
		t.Errorf("locks on another file system: %v, %v", held, err)
	}
	if err := Take(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there is looked at anew")
	}
}
