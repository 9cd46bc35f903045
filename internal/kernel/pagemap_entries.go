package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst). Each page of the
// address space has an entry, mapped or not, which makes reading slow where PAGEMAP_SCAN skips empty parts.
const (
	entryPresent   = 1 << 63
	entrySwapped   = 1 << 62
	entryFile      = 1 << 61
	entrySoftDirty = 1 << softDirtyBit
	// where the page is: a frame, or a place in swap
	entryPlace = entryFrame | entryPresent | entrySwapped
	entryFrame = 1<<55 - 1

	entrySize   = 8
	entriesRead = 4096 // at a time: 32 KiB
)

// entries has the state for working without PAGEMAP_SCAN, on Linux before 6.7.
type entries struct {
	buffer []byte
	zero   uint64 // frame of the kernel's zero page; 0 when this process may not know it (CAP_SYS_ADMIN)
}

func newEntries() (*entries, error) {
	zero, err := zeroFrame()
	if err != nil {
		return nil, err
	}
	return &entries{buffer: make([]byte, entriesRead*entrySize), zero: zero}, nil
}

// zeroFrame finds the frame of the zero page, which is mapped where this process has read and never
// written.
func zeroFrame() (uint64, error) {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|
		unix.MAP_POPULATE)
	if err != nil {
		return 0, fmt.Errorf("map a page of zeros: %w", err)
	}
	defer func() { _ = unix.Munmap(page) }()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var entry [entrySize]byte
	at := int64(uintptr(unsafe.Pointer(&page[0]))) / int64(os.Getpagesize()) * entrySize
	if _, err := f.ReadAt(entry[:], at); err != nil {
		return 0, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return binary.NativeEndian.Uint64(entry[:]) & entryFrame, nil
}

// categories returns the categories of PAGEMAP_SCAN that an entry shows.
func (e *entries) categories(entry uint64) uint64 {
	var c uint64
	if entry&entryPresent != 0 {
		c |= PagePresent
		if e.zero != 0 && entry&entryFrame == e.zero {
			c |= PageZero
		}
	}
	if entry&entrySwapped != 0 {
		c |= PageSwapped
	}
	if entry&entryFile != 0 {
		c |= PageFile
	}
	return c
}

// fits reports whether a page matches a scan, as PAGEMAP_SCAN decides.
func (s *pageScan) fits(categories uint64) bool {
	return (categories^s.inverted)&s.mask == s.mask && (s.anyOf == 0 || (categories^s.inverted)&s.anyOf != 0)
}

// scanEntries does what the ioctl does, without the write-protection.
func (p *Pagemap) scanEntries(arg pageScan) ([]PageRange, uint64, error) {
	return p.walk(arg, func(_, entry uint64) bool { return arg.fits(p.entries.categories(entry)) })
}

// walk reads the entries of a range and returns the wanted pages. It calls wanted once for each page.
func (p *Pagemap) walk(arg pageScan, wanted func(address, entry uint64) bool) ([]PageRange, uint64, error) {
	if p.entries == nil {
		e, err := newEntries()
		if err != nil {
			return nil, 0, err
		}
		p.entries = e
	}
	size := uint64(os.Getpagesize())
	found, pages := 0, uint64(0)
	for at := arg.start; at < arg.end; {
		n, err := p.readEntries(at, min(entriesRead, (arg.end-at)/size))
		if err != nil {
			return nil, 0, err
		}
		for i := 0; i < n; i, at = i+entrySize, at+size {
			entry := binary.NativeEndian.Uint64(p.entries.buffer[i:])
			if !wanted(at, entry) {
				continue
			}
			c := p.entries.categories(entry) & arg.returned
			if found > 0 && p.ranges[found-1].End == at && p.ranges[found-1].Categories == c {
				p.ranges[found-1].End += size
			} else {
				p.ranges[found] = PageRange{at, at + size, c}
				found++
			}
			if pages++; pages == arg.maxPages || found == len(p.ranges) {
				return p.ranges[:found], at + size, nil
			}
		}
	}
	return p.ranges[:found], arg.end, nil
}

// readEntries reads the entries of some pages and returns how many bytes they are.
func (p *Pagemap) readEntries(at, pages uint64) (int, error) {
	n, err := p.file.ReadAt(p.entries.buffer[:pages*entrySize], int64(at/uint64(os.Getpagesize())*entrySize))
	n -= n % entrySize
	if n > 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) { // the memory is gone: the process has ended, or called execve
		err = fs.ErrNotExist
	}
	return 0, fmt.Errorf("read %s at %#x: %w", p.file.Name(), at, err)
}
