package memory

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestChangedFilePages finds pages of a private file mapping that were written, and not those that were
// only read.
func TestChangedFilePages(t *testing.T) {
	size := PageSize()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(int64(4 * size)); err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(int(file.Fd()), 0, 4*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	mark := bytes.Repeat([]byte("godwit: changed "), size/16)
	read := mapped[size]
	copy(mapped[2*size:], mark)
	found := 0
	err = ChangedFilePages([]int{os.Getpid(), 1 << 22}, func(page FilePage) bool {
		if bytes.Equal(page.Content, mark) && page.File == file.Name() && page.Offset == uint64(2*size) {
			found++
		}
		return true
	})
	if err != nil || found != 1 {
		t.Errorf("it was found %d times, %v (read %d)", found, err, read)
	}
	visited := 0
	if err := ChangedFilePages([]int{os.Getpid()},
		func(FilePage) bool { visited++; return false }); err != nil || visited != 1 {
		t.Errorf("%d pages were visited, %v", visited, err)
	}
	opened, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range opened {
		if to, err := os.Readlink(fd); err == nil && to == fmt.Sprintf("/proc/%d/mem", os.Getpid()) {
			t.Error("the memory of a process stays open")
		}
	}
}
