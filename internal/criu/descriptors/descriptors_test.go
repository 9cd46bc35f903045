package descriptors

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/kernel"
)

func TestListOfThisProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := List(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(d Descriptor) bool { return d.Target == path })
	if i < 0 || all[i].FD != int(f.Fd()) {
		t.Fatalf("%v: want %s with number %d", all, path, f.Fd())
	}
	if err := os.Remove(path); err != nil || !all[i].StillOpen(os.Getpid()) {
		t.Errorf("a removed file is still open: %v", err)
	}
	if err := f.Close(); err != nil || all[i].StillOpen(os.Getpid()) {
		t.Errorf("a closed file is not: %v", err)
	}
}

func TestProcessesThatAreGone(t *testing.T) {
	const none = 1 << 22 // above the highest possible process
	if _, err := List(none); !IsGone(err) {
		t.Errorf("List: %v, want that it is gone", err)
	}
	if _, err := kernel.ReadProcess(none); !IsGone(err) {
		t.Errorf("ReadProcess: %v, want that it is gone", err)
	}
	if n, err := EachTCP([]int{none}, nil); n != 0 || err != nil {
		t.Errorf("EachTCP: %d, %v, want that it is left out", n, err)
	}
}
