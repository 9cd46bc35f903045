package kernel

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// envKernels is set where scripts/test-kernels.sh runs the tests, on kernels that are known to have
// soft-dirty if their architecture has it.
const envKernels = "GODWIT_TEST_KERNELS"

// needsSoftDirty reports whether the kernel has soft-dirty. make test-kernels makes sure that the tests run
// on such a kernel.
func needsSoftDirty(t *testing.T) bool {
	t.Helper()
	err := ProbeSoftDirty()
	if err == nil {
		return true
	}
	if expected := os.Getenv(envKernels); expected == "soft-dirty" {
		t.Fatalf("this kernel is expected to have soft-dirty: %v", err)
	}
	t.Logf("tested by make test-kernels: %v", err)
	return false
}

// own is memory of this process, in whole page tables.
type own struct {
	t     *testing.T
	bytes []byte
	at    uint64
}

const tableSize = 2 << 20 // what one page table maps: 512 pages of 4 KiB

func newOwn(t *testing.T, tables int) *own {
	t.Helper()
	m, err := unix.Mmap(-1, 0, (tables+1)*tableSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|
		unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Madvise(m, unix.MADV_NOHUGEPAGE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	skip := -int(uintptr(unsafe.Pointer(&m[0]))) & (tableSize - 1)
	o := &own{t: t, bytes: m[skip : skip+tables*tableSize]}
	o.at = uint64(uintptr(unsafe.Pointer(&o.bytes[0])))
	return o
}

// self opens this process's memory, and clears its soft-dirty bits.
func self(t *testing.T) (*AddressSpace, *Pagemap) {
	t.Helper()
	space, err := OpenAddressSpace(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Close() })
	pagemap, err := space.OpenPagemap()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pagemap.Close() })
	return space, pagemap
}

// collect collects all results of a scan, in pages.
func collect(t *testing.T, look func(start, end, pages uint64) ([]PageRange, uint64, error), start, end,
	most uint64) []PageRange {
	t.Helper()
	var all []PageRange
	for at := start; at < end; {
		ranges, next, err := look(at, end, most)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range ranges {
			for page := r.Start; page < r.End; page += uint64(os.Getpagesize()) {
				all = append(all, PageRange{page, page + uint64(os.Getpagesize()), r.Categories})
			}
		}
		at = next
	}
	return all
}

func written(pagemap *Pagemap, frames *Frames) func(start, end, most uint64) ([]PageRange, uint64, error) {
	return func(start, end, most uint64) ([]PageRange, uint64, error) {
		return pagemap.SoftDirty(frames, false, start, end, most)
	}
}

// TestSoftDirty reads the soft-dirty bits.
func TestSoftDirty(t *testing.T) {
	if !needsSoftDirty(t) {
		return
	}
	for _, most := range []uint64{100, 1 << 20} {
		o := newOwn(t, 3)
		space, pagemap := self(t)
		size := os.Getpagesize()
		frames := NewFrames()
		dirty := func() []PageRange {
			t.Helper()
			return collect(t, written(pagemap, frames), o.at, o.at+uint64(len(o.bytes)), most)
		}
		for i := 0; i < 2*tableSize; i += size {
			o.bytes[i] = 1
		}
		if n := len(dirty()); n != 2*tableSize/size {
			t.Errorf("%d pages of a new mapping are written, want %d", n, 2*tableSize/size)
		}
		if err := space.ClearSoftDirty(); err != nil {
			t.Fatal(err)
		}
		if n := len(dirty()); n != 0 {
			t.Errorf("%d pages are written after the notes were cleared", n)
		}
		for _, i := range []int{0, 1, 7, 511, 600} {
			o.bytes[i*size] = 2
		}
		if n := len(dirty()); n != 5 {
			t.Errorf("%d pages are written, want 5", n)
		}
		if n := len(dirty()); n != 5 {
			t.Errorf("%d pages are written when one looks again, want 5", n)
		}
	}
}

// TestSoftDirtyMoved moves whole page tables over others, which the kernel does without touching the pages.
func TestSoftDirtyMoved(t *testing.T) {
	if !needsSoftDirty(t) {
		return
	}
	o := newOwn(t, 3)
	space, pagemap := self(t)
	for i := range o.bytes {
		o.bytes[i] = byte(i)
	}
	if err := space.ClearSoftDirty(); err != nil {
		t.Fatal(err)
	}
	frames := NewFrames()
	collect(t, written(pagemap, frames), o.at, o.at+uint64(len(o.bytes)), 1<<30)
	if n := len(collect(t, written(pagemap, frames), o.at, o.at+uint64(len(o.bytes)), 1<<30)); n > 0 {
		t.Errorf("%d pages are written before they are moved", n)
	}
	to := o.at + 2*tableSize
	got, err := unix.MremapPtr(unsafe.Pointer(&o.bytes[0]), tableSize, unsafe.Pointer(&o.bytes[2*tableSize]),
		tableSize, unix.MREMAP_FIXED|unix.MREMAP_MAYMOVE)
	if err != nil || uint64(uintptr(got)) != to {
		t.Fatalf("mremap: %v", err)
	}
	if n := len(collect(t, written(pagemap, frames), to, to+tableSize,
		1<<30)); n != tableSize/os.Getpagesize() {
		t.Errorf("%d pages of the moved mapping are written, want all", n)
	}
}

// TestEntries compares the results of both ways.
func TestEntries(t *testing.T) {
	p := kerneltest.StartProgram(t, "block")
	space, err := OpenAddressSpace(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	pagemap, err := space.OpenPagemap()
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	mappings, err := space.Mappings()
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	for _, m := range mappings {
		if m.Shared || m.File || m.Name == "[vsyscall]" || m.End-m.Start > 1<<30 {
			continue
		}
		look := func(noScan bool) (existing, own []PageRange) {
			pagemap.noScan = noScan
			return collect(t, pagemap.Existing, m.Start, m.End, 3), all(t, pagemap, m)
		}
		before, _ := look(false)
		oldExisting, oldOwn := look(true)
		existing, own := look(false)
		for !slices.Equal(existing, before) { // it is still starting
			before = existing
			oldExisting, oldOwn = look(true)
			existing, own = look(false)
		}
		if !slices.Equal(existing, oldExisting) || !slices.Equal(own, oldOwn) {
			t.Errorf("%+v: %d and %d pages exist, %d and %d have content", m, len(existing), len(oldExisting),
				len(own), len(oldOwn))
		}
		pages += len(own)
	}
	if pages < 256 {
		t.Errorf("only %d pages were found", pages)
	}
}

func all(t *testing.T, pagemap *Pagemap, m Mapping) []PageRange {
	t.Helper()
	return collect(t, func(start, end, _ uint64) ([]PageRange, uint64,
		error) {
		return pagemap.Anonymous(start, end)
	}, m.Start, m.End, 0)
}
