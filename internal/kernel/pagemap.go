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
	PageZero    = 1 << 5 // the kernel's page of zeros: read and never written
	PageHuge    = 1 << 6

	// pageGuard is a mark that makes every access fail (MADV_GUARD_INSTALL, Linux 6.13). It looks
	// like a swapped page; the category is there since 6.15.
	pageGuard = 1 << 8
)

const (
	scanWriteProtect = 1 << 0 // PM_SCAN_WP_MATCHING
	scanCheckAsync   = 1 << 1 // PM_SCAN_CHECK_WPASYNC
)

// PageRange is a range of addresses whose pages are all of the same categories. It has the layout
// of struct page_region.
type PageRange struct {
	Start, End uint64
	Categories uint64
}

// pageScan is struct pm_scan_arg.
type pageScan struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages uint64
	inverted, mask, anyOf, returned                         uint64
}

// Pagemap answers questions about the pages of an address space. It is for one goroutine.
type Pagemap struct {
	file    *os.File
	ranges  []PageRange
	noGuard bool // the kernel does not know pageGuard

	entries *entries // what is needed to do without PAGEMAP_SCAN
	noScan  bool     // there is no PAGEMAP_SCAN
}

// OpenPagemap opens the pagemap of the memory that the process has now: after an execve it is another.
func (a *AddressSpace) OpenPagemap() (*Pagemap, error) {
	f, err := a.open("pagemap")
	if err != nil {
		return nil, err
	}
	return &Pagemap{file: f, ranges: make([]PageRange, 1024)}, nil
}

// Reopen replaces what p looks at by the memory that the process has now.
func (p *Pagemap) Reopen(a *AddressSpace) error {
	f, err := a.open("pagemap")
	if err != nil {
		return err
	}
	_ = p.file.Close() // it was only read
	p.file = f
	return nil
}

// Close ends the use of the pagemap.
func (p *Pagemap) Close() error { return p.file.Close() }

// Written returns ranges of pages between start and end that exist and were written since they were
// last write-protected by this call, and write-protects them in the same step; next is where to go
// on. At most maxPages pages are returned. All of the memory between start and end must be
// registered with WriteProtect.Register, otherwise the error is EPERM. What was write-protected
// before that error is lost, until it is registered again, all of it. The ranges are valid until
// the next call.
func (p *Pagemap) Written(start, end, maxPages uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{
		flags: scanWriteProtect | scanCheckAsync, start: start, end: end, maxPages: maxPages,
		mask: PageWritten, anyOf: PagePresent | PageSwapped, returned: PageZero | PageHuge | PageSwapped,
	})
}

// WrittenSoFar returns ranges of pages between start and end that exist and were written since
// Written last write-protected them, and leaves them as they are: what is written again costs the
// process nothing, and they are found again. The rest is as with Written.
func (p *Pagemap) WrittenSoFar(start, end, maxPages uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{
		flags: scanCheckAsync, start: start, end: end, maxPages: maxPages,
		mask: PageWritten, anyOf: PagePresent | PageSwapped, returned: PageZero,
	})
}

// Existing returns all pages that exist, written or not, and write-protects nothing; so nothing
// need be registered, and it works on all kernels.
func (p *Pagemap) Existing(start, end, maxPages uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{start: start, end: end, maxPages: maxPages, anyOf: PagePresent | PageSwapped,
		returned: PageZero | PageSwapped})
}

// Exists tells whether a page exists. What other calls have returned stays valid.
func (p *Pagemap) Exists(address uint64) (bool, error) {
	one := *p
	one.ranges = make([]PageRange, 1)
	found, _, err := one.Existing(address, address+uint64(os.Getpagesize()), 1)
	p.noGuard = one.noGuard
	return len(found) > 0, err
}

// Registered tells whether the mapping at an address is registered with WriteProtect.Register, or
// none is there.
func (p *Pagemap) Registered(address uint64) bool {
	end := address + uint64(os.Getpagesize())
	_, _, err := p.scan(pageScan{flags: scanCheckAsync, start: address, end: end, maxPages: 1,
		anyOf: PagePresent, returned: PageZero})
	return !errors.Is(err, unix.EPERM)
}

// Small tells whether all pages between start and end are present and none is part of a huge page
// or the page of zeros.
func (p *Pagemap) Small(start, end uint64) (bool, error) {
	ranges, _, err := p.scan(pageScan{
		start: start, end: end, inverted: PageHuge | PageZero, mask: PagePresent | PageHuge | PageZero,
		returned: PagePresent,
	})
	return len(ranges) == 1 && ranges[0].Start == start && ranges[0].End == end, err
}

// Anonymous returns ranges of pages between start and end that have content of their own: what CRIU
// would dump of a private anonymous mapping (criu/pagemap-cache.c: present or swapped, and not the
// page of zeros). Whether a page belongs to a file, as it can in other mappings, is not asked: the
// kernel would look at each page then, and take five times as long.
func (p *Pagemap) Anonymous(start, end uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{
		start: start, end: end,
		inverted: PageZero, mask: PageZero, anyOf: PagePresent | PageSwapped, returned: PagePresent,
	})
}

// Changed returns ranges of pages between start and end that have content of their own in a private
// mapping of a file: what the process has written there, and not what it has only read.
func (p *Pagemap) Changed(start, end, maxPages uint64) (ranges []PageRange, next uint64, err error) {
	return p.scan(pageScan{
		start: start, end: end, maxPages: maxPages,
		inverted: PageZero | PageFile, mask: PageZero | PageFile, anyOf: PagePresent | PageSwapped,
		returned: PagePresent,
	})
}

// Guarded tells whether there are pages between start and end that pageGuard marks. A kernel that
// cannot tell says no.
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

// TellsGuards tells whether no page that was found is one that pageGuard marks, because the kernel
// can tell them, or has none; otherwise there may be some among the swapped ones.
func (p *Pagemap) TellsGuards() bool { return !p.noGuard || !hasGuards() }

// hasGuards finds out whether this kernel has guards: other advice it refuses.
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

// scan leaves out what pageGuard marks, if the kernel can tell, and does without PAGEMAP_SCAN where
// there is none.
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
	if arg.walkEnd <= arg.start && n == 0 { // cannot be; but it would never end
		arg.walkEnd = arg.end
	}
	return p.ranges[:n], arg.walkEnd, nil
}
