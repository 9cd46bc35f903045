package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Categories of pages of PAGEMAP_SCAN (include/uapi/linux/fs.h,
// Documentation/admin-guide/mm/pagemap.rst; Linux 6.7).
const (
	PageWritten = 1 << 1 // written since it was write-protected
	PageFile    = 1 << 2
	PagePresent = 1 << 3
	PageSwapped = 1 << 4
	PageZero    = 1 << 5 // the kernel's zero page: read and never written
	PageHuge    = 1 << 6

	// pageGuard is a mark that makes every access fail (MADV_GUARD_INSTALL, Linux 6.13). It looks like a
	// swapped page; the category exists since 6.15.
	pageGuard = 1 << 8
)

// pageGuard is a mark that makes every access fail (MADV_GUARD_INSTALL, Linux 6.13). It looks like a
// swapped page; the category exists since 6.15.

// pageGuard is a mark that makes every access fail (MADV_GUARD_INSTALL, Linux 6.13). It looks like a
// swapped page; the category exists since 6.15.

const (
	scanWriteProtect = 1 << 0 // PM_SCAN_WP_MATCHING
	scanCheckAsync   = 1 << 1 // PM_SCAN_CHECK_WPASYNC
)

// PageRange is a range of addresses whose pages all have the same categories. It has the layout of struct
// page_region.
type PageRange struct {
	Start, End uint64
	Categories uint64
}

// pageScan is struct pm_scan_arg.
type pageScan struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages uint64
	inverted, mask, anyOf, returned                         uint64
}

// Pagemap answers queries about the pages of an address space. It is for one goroutine.
type Pagemap struct {
	file    *os.File
	ranges  []PageRange
	noGuard bool // the kernel does not know pageGuard

	entries *entries // for working without PAGEMAP_SCAN
	noScan  bool     // there is no PAGEMAP_SCAN
}

// OpenPagemap opens the pagemap of the process's present memory: after an execve it is another.
func (a *AddressSpace) OpenPagemap() (*Pagemap, error) {
	f, err := a.open("pagemap")
	if err != nil {
		return nil, err
	}
	return &Pagemap{file: f, ranges: make([]PageRange, 1024)}, nil
}

// Reopen makes p use the process's present memory.
func (p *Pagemap) Reopen(a *AddressSpace) error {
	f, err := a.open("pagemap")
	if err != nil {
		return err
	}
	_ = p.file.Close() // it was only opened for reading
	p.file = f
	return nil
}

// Close closes the pagemap.
func (p *Pagemap) Close() error { return p.file.Close() }

// Written returns ranges of existing pages between start and end that were written since this call last
// write-protected them, and write-protects them in the same step; next is where to continue. It returns at
// most maxPages pages. All of the memory between start and end must be registered with
// WriteProtect.Register, otherwise the error is EPERM. Pages that were write-protected before that error
// are lost, until all of the memory is registered again. The ranges are valid until the next call.
func (p *Pagemap) Written(start, end, maxPages uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{
		flags: scanWriteProtect | scanCheckAsync, start: start, end: end, maxPages: maxPages,
		mask: PageWritten, anyOf: PagePresent | PageSwapped, returned: PageZero | PageHuge | PageSwapped,
	})
}

// WrittenSoFar returns ranges of existing pages between start and end that were written since Written last
// write-protected them, without changing them: writing them again costs the process nothing, and they are
// found again. Otherwise it is like Written.
func (p *Pagemap) WrittenSoFar(start, end, maxPages uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{
		flags: scanCheckAsync, start: start, end: end, maxPages: maxPages,
		mask: PageWritten, anyOf: PagePresent | PageSwapped, returned: PageZero,
	})
}

// Existing returns all existing pages, written or not, and write-protects nothing. So nothing need be
// registered, and it works on all kernels.
func (p *Pagemap) Existing(start, end, maxPages uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{start: start, end: end, maxPages: maxPages, anyOf: PagePresent | PageSwapped,
		returned: PageZero | PageSwapped})
}

// Exists reports whether a page exists. The results of other calls stay valid.
func (p *Pagemap) Exists(address uint64) (bool, error) {
	one := *p
	one.ranges = make([]PageRange, 1)
	found, _, err := one.Existing(address, address+uint64(os.Getpagesize()), 1)
	p.noGuard = one.noGuard
	return len(found) > 0, err
}

// Registered reports whether the mapping at an address is registered with WriteProtect.Register, or there
// is no mapping.
func (p *Pagemap) Registered(address uint64) bool {
	end := address + uint64(os.Getpagesize())
	_, _, err := p.scan(pageScan{flags: scanCheckAsync, start: address, end: end, maxPages: 1,
		anyOf: PagePresent, returned: PageZero})
	return !errors.Is(err, unix.EPERM)
}

// Small reports whether all pages between start and end are present, and none is part of a huge page or the
// zero page.
func (p *Pagemap) Small(start, end uint64) (bool, error) {
	ranges, _, err := p.scan(pageScan{
		start: start, end: end, inverted: PageHuge | PageZero, mask: PagePresent | PageHuge | PageZero,
		returned: PagePresent,
	})
	return len(ranges) == 1 && ranges[0].Start == start && ranges[0].End == end, err
}

// Anonymous returns ranges of pages between start and end that have content of their own: those that CRIU
// would dump of a private anonymous mapping (criu/pagemap-cache.c: present or swapped, and not the zero
// page). It does not query whether a page belongs to a file, as it can in other mappings: the kernel would
// then examine each page, and take five times as long.
func (p *Pagemap) Anonymous(start, end uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{
		start: start, end: end,
		inverted: PageZero, mask: PageZero, anyOf: PagePresent | PageSwapped, returned: PagePresent,
	})
}

// Changed returns ranges of pages between start and end that have content of their own in a private mapping
// of a file: pages that the process has written there, and not those that it has only read.
func (p *Pagemap) Changed(start, end, maxPages uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{
		start: start, end: end, maxPages: maxPages,
		inverted: PageZero | PageFile, mask: PageZero | PageFile, anyOf: PagePresent | PageSwapped,
		returned: PagePresent,
	})
}

// Guarded reports whether there are pages between start and end with pageGuard marks. On a kernel that does
// not report them, the answer is no.
func (p *Pagemap) Guarded(start, end uint64) (bool, error) {
	if p.noGuard {
		return false, nil
	}
	ranges, _, err := p.ioctl(pageScan{start: start, end: end, maxPages: 1, mask: pageGuard,
		returned: pageGuard})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		p.noGuard = true
		return false, nil
	}
	return len(ranges) > 0, err
}

// TellsGuards reports whether no returned page has a pageGuard mark, because the kernel reports marks or
// has none; otherwise some of the swapped pages may have them.
func (p *Pagemap) TellsGuards() bool { return !p.noGuard || !hasGuards() }

// hasGuards checks whether this kernel has guards: it refuses unknown advice.
func hasGuards() bool {
	const installGuard = 102 // MADV_GUARD_INSTALL of include/uapi/asm-generic/mman-common.h
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|
		unix.MAP_ANONYMOUS)
	if err != nil {
		return true // it may
	}
	defer func() { _ = unix.Munmap(page) }()
	return !errors.Is(unix.Madvise(page, installGuard), unix.EINVAL)
}

// scan leaves out pages with pageGuard marks, if the kernel reports them, and works without PAGEMAP_SCAN if
// the kernel lacks it.
func (p *Pagemap) scan(arg pageScan) ([]PageRange, uint64, error) {
	if p.noScan {
		return p.scanEntries(arg)
	}
	ranges, next, err := p.scanGuarded(arg)
	if errors.Is(err, unix.ENOTTY) && arg.flags == 0 {
		p.noScan = true
		return p.scanEntries(arg)
	}
	return ranges, next, err
}

func (p *Pagemap) scanGuarded(arg pageScan) ([]PageRange, uint64, error) {
	if !p.noGuard {
		withGuard := arg
		withGuard.inverted |= pageGuard
		withGuard.mask |= pageGuard
		ranges, next, err := p.ioctl(withGuard)
		if !errors.Is(err, unix.EINVAL) {
			return ranges, next, err
		}
		p.noGuard = true
	}
	return p.ioctl(arg)
}

func (p *Pagemap) ioctl(arg pageScan) ([]PageRange, uint64, error) {
	arg.size = uint64(unsafe.Sizeof(arg))
	arg.vec, arg.vecLen = uint64(uintptr(unsafe.Pointer(&p.ranges[0]))), uint64(len(p.ranges))
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, p.file.Fd(), ioctlPagemapScan, uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(p.ranges)
	if errno == unix.ESRCH { // the memory is gone: the process has ended, or called execve
		return nil, 0, fmt.Errorf("scan %s: %w", p.file.Name(), fs.ErrNotExist)
	}
	if errno != 0 {
		return nil, 0, fmt.Errorf("scan %s from %#x to %#x: %w", p.file.Name(), arg.start, arg.end, errno)
	}
	if arg.walkEnd <= arg.start && n == 0 { // impossible, but it would never end
		arg.walkEnd = arg.end
	}
	return p.ranges[:n], arg.walkEnd, nil
}
