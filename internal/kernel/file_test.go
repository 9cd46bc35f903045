package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestCreateDurable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	if err := CreateDurable(path, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CreateDurable(path, []byte("b"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v, want that it is there", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "a" {
		t.Errorf("it has %q, %v", data, err)
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
