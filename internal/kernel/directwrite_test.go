package kernel

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDirectWrites finds the only file of several that is written past the page cache.
func TestDirectWrites(t *testing.T) {
	dir := t.TempDir()
	var inode uint64
	for name, flags := range map[string]int{
		"direct": os.O_RDWR | unix.O_DIRECT, "read": os.O_RDONLY | unix.O_DIRECT, "cached": os.O_RDWR,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		var stat unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
			t.Fatal(err)
		}
		if name == "direct" {
			inode = stat.Ino
		}
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_DIRECT|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) })
	space, err := OpenAddressSpace(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Close() })
	found, err := space.DirectWrites()
	if err != nil || len(found) != 1 ||
		found[0] != (OpenFile{Inode: inode, Path: filepath.Join(dir, "direct")}) {
		t.Errorf("found %+v, %v; want inode %d", found, err, inode)
	}
}
