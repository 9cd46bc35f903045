package memory

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func fullPage(b byte) []byte { return bytes.Repeat([]byte{b}, PageSize()) }

func FuzzParseDescription(f *testing.F) {
	o := Object{Task: FirstObject, Inode: 7, Size: 1 << 20, Mode: 0o600, Name: "a name"}
	f.Add(o.description())
	f.Fuzz(func(t *testing.T, page []byte) {
		o, err := parseDescription(FirstObject, page)
		if err != nil {
			return
		}
		if again, err := parseDescription(FirstObject, o.description()); err != nil || again != o {
			t.Errorf("%+v becomes %+v, %v", o, again, err)
		}
	})
}

// TestStoredObject puts pages of an object before its description, changes and drops some, and checks the
// name, size, owner, permissions, seals and content of the resulting file.
func TestStoredObject(t *testing.T) {
	s, err := NewStore(1 << 20)
	must(t, err)
	defer s.Close()
	size := uint64(PageSize())
	put := func(page uint64, content []byte) {
		t.Helper()
		must(t, s.Put(Run{Task: FirstObject, Address: page * size, Pages: 1, Zero: content == nil}, content))
	}
	put(0, fullPage(1))
	put(600, fullPage(2))
	want := Object{
		Task: FirstObject, Inode: 99, Size: 601*size - 100, UID: 1000, GID: 1001, Mode: 0o640, Name: "it",
		Seals: unix.F_SEAL_SHRINK | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL,
	}
	must(t, s.Put(Run{Task: FirstObject, Address: descriptionAddress, Pages: 1}, want.description()))
	put(0, fullPage(3))
	put(1, fullPage(4))
	put(2, fullPage(5))
	put(2, nil)
	listed := TaskMap{Task: FirstObject,
		Areas: []Area{{0, 1}, {2 * size, 1}, {600 * size, 1}, {descriptionAddress, 1}}}
	must(t, s.Keep([]TaskMap{listed}))
	all, err := s.TakeObjects()
	must(t, err)
	if len(all) != 1 || all[0].Object != want {
		t.Fatalf("%+v, want %+v", all, want)
	}
	defer all[0].File.Close()
	var info unix.Stat_t
	must(t, unix.Fstat(int(all[0].File.Fd()), &info))
	if info.Uid != 1000 || info.Gid != 1001 || info.Mode&0o7777 != 0o640 || info.Size != int64(want.Size) ||
		info.Blocks*512 != int64(2*size) {
		t.Errorf("%+v", info)
	}
	seals := func() int {
		n, err := unix.FcntlInt(all[0].File.Fd(), unix.F_GET_SEALS, 0)
		must(t, err)
		return n
	}
	if seals() != unix.F_SEAL_SHRINK {
		t.Errorf("seals %#x", seals())
	}
	must(t, all[0].Seal())
	if seals() != int(want.Seals) {
		t.Errorf("seals %#x, want %#x", seals(), want.Seals)
	}
	content, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", all[0].File.Fd()))
	must(t, err)
	for page, b := range map[uint64]byte{0: 3, 1: 0, 2: 0, 599: 0} {
		if !bytes.Equal(content[page*size:(page+1)*size], fullPage(b)) {
			t.Errorf("page %d is %x…", page, content[page*size])
		}
	}
	if last := content[600*size:]; !bytes.Equal(last, fullPage(2)[:len(last)]) {
		t.Error("the last page is wrong")
	}
}

// TestStoredObjectRefused: malformed or incomplete objects are refused.
func TestStoredObjectRefused(t *testing.T) {
	s, err := NewStore(1 << 20)
	must(t, err)
	defer s.Close()
	for _, run := range []Run{
		{Task: FirstObject, Address: descriptionAddress, Pages: 1, Zero: true},
		{Task: FirstObject, Address: descriptionAddress - uint64(PageSize()), Pages: 2, Zero: true},
		{Task: lastTask + 1, Pages: 1, Zero: true},
	} {
		if err := s.Put(run, nil); err == nil {
			t.Errorf("%+v was taken", run)
		}
	}
	if err := s.Put(Run{Task: FirstObject, Address: descriptionAddress, Pages: 1}, fullPage(1)); err == nil {
		t.Error("a page that describes nothing was taken")
	}
	must(t, s.Put(Run{Task: FirstObject, Pages: 1}, fullPage(1)))
	if _, err := s.TakeObjects(); err == nil {
		t.Error("an object without a description was given away")
	}
	must(t, s.Forget(FirstObject))
	if s.Bytes() != 0 {
		t.Errorf("%d bytes are left", s.Bytes())
	}
}
