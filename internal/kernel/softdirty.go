package kernel

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ClearSoftDirty makes the kernel forget which pages of the process were written, and record writes from
// now on (Documentation/admin-guide/mm/soft-dirty.rst). Later mappings count as written. The process need
// not be stopped; its page faults wait meanwhile, some 10 ms per GiB. All users share the records: CRIU's
// pre-dump is one of them.
func (a *AddressSpace) ClearSoftDirty() error {
	fd, err := unix.Openat(int(a.proc.Fd()), "clear_refs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return a.failed("open its clear_refs", err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/clear_refs", a.pid))
	_, err = f.WriteString("4")
	if err := errors.Join(err, f.Close()); err != nil {
		return a.failed("forget which pages it has written", err)
	}
	return nil
}

// Frames remembers where each page of an address space was, which takes 2 MiB per GiB. Soft-dirty records
// alone are incomplete: when mremap(2) moves a whole page table (HAVE_MOVE_PMD), its pages stay as clean as
// they were, at an address that had other contents. Seen on Linux 6.1. PAGEMAP_SCAN does not report frames.
type Frames struct {
	tables map[uint64]*frameTable
	last   uint64 // key of the one below, 0: none
	table  *frameTable
}

const frameTablePages = 512

type frameTable [frameTablePages]uint64

// NewFrames returns an empty Frames.
func NewFrames() *Frames { return &Frames{tables: map[uint64]*frameTable{}} }

// moved reports whether a page is not where it was, and records where it is now.
func (f *Frames) moved(page, entry uint64) bool {
	key := page/frameTablePages + 1
	place := entry & entryPlace
	if key != f.last {
		table := f.tables[key]
		if table == nil {
			if place == 0 { // as if nothing was recorded
				return false
			}
			table = &frameTable{}
			f.tables[key] = table
		}
		f.last, f.table = key, table
	}
	was := &f.table[page%frameTablePages]
	moved := *was != place
	*was = place
	return moved
}

// SoftDirty returns ranges of existing pages that were written since ClearSoftDirty, or that are not where
// they were when the same frames were last passed; with all, it returns all existing pages. The records
// stay. It reads an entry for each page for which the range has room. Error: fs.ErrNotExist when the memory
// is gone.
func (p *Pagemap) SoftDirty(frames *Frames, all bool, start, end, maxPages uint64) (ranges []PageRange,
	next uint64, err error) {
	size := uint64(os.Getpagesize())
	arg := pageScan{start: start, end: end, maxPages: maxPages, returned: PageZero | PageSwapped}
	return p.walk(arg, func(address, entry uint64) bool {
		moved := frames.moved(address/size, entry)
		return entry&(entryPresent|entrySwapped) != 0 && (all || moved || entry&entrySoftDirty != 0)
	})
}
