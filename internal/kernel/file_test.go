package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// TestCreateDurable makes a file where there is no room for another byte.
func TestCreateDurable(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "record")
	if err := CreateDurable(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CreateDurable(path, 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v, want that it is there", err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("it is %+v, %v", info, err)
	}
}

func TestWriteFileAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	for _, content := range []string{"one", "two and more", ""} {
		if err := WriteFileAtomic(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("content %q, %v, want %q", got, err, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := WriteFileAtomic(filepath.Join(dir, "missing", "x"), nil, 0o600); err == nil {
		t.Error("a missing directory is no error")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
	for range 2 {
		if err := RemoveDurable(path); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkWriteFileAtomic(b *testing.B) {
	path := filepath.Join(b.TempDir(), "record")
	for b.Loop() {
		if err := WriteFileAtomic(path, []byte("{}\n"), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRemoveUnfinished checks that only files of writers that have ended are removed.
func TestRemoveUnfinished(t *testing.T) {
	dir := t.TempDir()
	ended := exec.Command("true")
	kerneltest.Must(t, ended.Run())
	names := []string{
		fmt.Sprintf(".report.json.new-%d-7", ended.Process.Pid),
		fmt.Sprintf(".report.json.new-%d-7", os.Getppid()),
		fmt.Sprintf("report.json.new-%d-7", ended.Process.Pid), ".report.json.new-x-7",
		".report.json.new-99999999999999999999-7", "report.json",
	}
	for _, name := range names {
		kerneltest.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	kerneltest.Must(t,
		os.Mkdir(filepath.Join(dir, fmt.Sprintf(".directory.new-%d-7", ended.Process.Pid)), 0o700))
	kerneltest.Must(t, RemoveUnfinished(dir))
	entries, err := os.ReadDir(dir)
	kerneltest.Must(t, err)
	if len(entries) != len(names) { // one fewer, and the directory
		t.Errorf("there is %v", entries)
	}
	for _, entry := range entries {
		if entry.Name() == names[0] {
			t.Errorf("%s is there", names[0])
		}
	}
	if err := RemoveUnfinished(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
}
