package pager

import (
	"math/bits"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// region maps pages of the image to an address space. It is within one slot.
type region struct {
	start, end uint64
	page       int // of the address space's slots, at start
}

// space is the address space of one process. Its pages are numbered through its slots.
//
// The lock rule: a goroutine that copies holds mu for reading from the check of what is missing until the
// copy is recorded. A goroutine that reads a message from the userfaultfd holds mu for writing from before
// the read until the message is recorded. The kernel reports the removal of pages, or a fork, before it
// happens, and waits until the message is read. So no copy that began before a removal can come after it.
//
// A page that is still at the source is missing, and not here; only pages that are here are copied. An
// arrival is recorded without the lock, and an arrived page never becomes remote again; so the rule also
// holds for pages that come meanwhile.
type space struct {
	family   *family
	faults   *kernel.Faults
	slots    []*slot
	pageSize uint64
	release  func(*slot) // called when no space is missing its pages any more
	complete func()      // called when nothing is missing any more

	mu      sync.RWMutex
	regions []region // in order of address
	closed  bool

	pending []uint64 // a bit for each missing page; changed atomically
	left    atomic.Int64
	cursor  atomic.Uint64 // address where the background continues
	gone    atomic.Bool   // the process has ended
}

// newSpace makes the address space of a task of the image.
func newSpace(m *family, faults *kernel.Faults, image []memory.ImageSlot, pageSize int) *space {
	s := &space{family: m, faults: faults, slots: m.slots, pageSize: uint64(pageSize)}
	s.release, s.complete = func(*slot) {}, func() {}
	for i := range image {
		one := &image[i]
		pages := int64(one.Pages())
		m.slots[i].left.Add(pages)
		s.left.Add(pages)
		s.regions = append(s.regions, region{start: one.Address, end: one.Address + memory.SlotBytes,
			page: i * slotPages})
		for w := range one.Have {
			s.pending = append(s.pending, one.Have[w]|one.Remote[w])
		}
	}
	return s
}

// fork makes the address space of a child, which is missing the same pages.
func (s *space) fork(faults *kernel.Faults) *space {
	child := &space{
		family: s.family, faults: faults, slots: s.slots, pageSize: s.pageSize, release: s.release,
		complete: s.complete,
		regions:  slices.Clone(s.regions), pending: slices.Clone(s.pending),
	}
	for i, word := range child.pending {
		n := int64(bits.OnesCount64(word))
		child.left.Add(n)
		child.slots[i/slotWords].left.Add(n)
	}
	return child
}

// offset returns the offset of a page in the image.
func (s *space) offset(page int) uint64 {
	return s.slots[page/slotPages].offset + uint64(page%slotPages)*s.pageSize
}

// from returns the index of the first region that ends after address.
func (s *space) from(address uint64) int {
	return sort.Search(len(s.regions), func(i int) bool { return s.regions[i].end > address })
}

// at returns the number of the page at an address; false if the image has none there.
func (s *space) at(address uint64) (page int, ok bool) {
	i := s.from(address)
	if i == len(s.regions) || s.regions[i].start > address {
		return 0, false
	}
	return s.regions[i].page + int((address-s.regions[i].start)/s.pageSize), true
}

// find returns the number of the page at an address; false if none is missing there.
func (s *space) find(address uint64) (page int, missing bool) {
	page, ok := s.at(address)
	return page, ok && s.missing(page)
}

func (s *space) missing(page int) bool {
	return atomic.LoadUint64(&s.pending[page/wordBits])>>(page%wordBits)&1 != 0
}

// locate returns a page's present address, and how many pages from it on are in the same region.
func (s *space) locate(page int) (address uint64, pages int, ok bool) {
	within := func(r region) bool {
		if page < r.page || page >= r.page+int((r.end-r.start)/s.pageSize) {
			return false
		}
		address = r.start + uint64(page-r.page)*s.pageSize
		pages = int((r.end - address) / s.pageSize)
		return true
	}
	home := s.slots[page/slotPages].address + uint64(page%slotPages)*s.pageSize
	if i := s.from(home); i < len(s.regions) && within(s.regions[i]) {
		return address, pages, true
	}
	return address, pages, slices.ContainsFunc(s.regions, within) // it was moved
}

// stretch is a sequence of missing pages that are here, and become the same kind.
type stretch struct {
	address uint64
	page    int
	pages   int
	kind    kind
}

// stretch returns the stretch that begins with a page, up to most pages.
func (s *space) stretch(address uint64, page, most int) stretch {
	found := stretch{address: address, page: page, pages: 1, kind: s.kind(page)}
	for next := page + 1; next < page+most && s.here(next/wordBits)>>(next%wordBits)&1 != 0 &&
		s.kind(next) == found.kind; next++ {
		found.pages++
	}
	return found
}

func (s *space) kind(page int) kind { return s.slots[page/slotPages].kind(page % slotPages) }

// next finds the first missing pages that are here at or after an address, up to most.
func (s *space) next(address uint64, most int) (stretch, bool) {
	for i := s.from(address); i < len(s.regions); i++ {
		r := s.regions[i]
		first, end := r.page, r.page+int((r.end-r.start)/s.pageSize)
		if address > r.start {
			first += int((address - r.start) / s.pageSize)
		}
		if page, ok := s.firstHere(first, end); ok {
			return s.stretch(r.start+uint64(page-r.page)*s.pageSize, page, min(most, end-page)), true
		}
	}
	return stretch{}, false
}

// here returns the pages of a word that are missing and can be filled.
func (s *space) here(word int) uint64 {
	missing := atomic.LoadUint64(&s.pending[word])
	if remote := s.slots[word/slotWords].remote; remote != nil && missing != 0 {
		missing &^= atomic.LoadUint64(&remote.away[word%slotWords])
	}
	return missing
}

// firstHere returns the first missing page that can be filled from first on, before end.
func (s *space) firstHere(first, end int) (int, bool) {
	for page := first; page < end; {
		word := s.here(page/wordBits) >> (page % wordBits)
		if word != 0 {
			page += bits.TrailingZeros64(word)
			return page, page < end
		}
		page += wordBits - page%wordBits
	}
	return 0, false
}

// claim takes the next missing pages for a background worker. At the end two workers may get the same
// pages: the second finds them filled.
func (s *space) claim(most int) (stretch, bool) {
	for {
		at := s.cursor.Load()
		found, ok := s.next(at, most)
		if !ok && at > 0 {
			found, ok = s.next(0, most)
		}
		if !ok {
			return stretch{}, false
		}
		if s.cursor.CompareAndSwap(at, found.address+uint64(found.pages)*s.pageSize) {
			return found, true
		}
	}
}

// done records that pages, of one slot, are no longer missing.
func (s *space) done(page, pages int) {
	one, cleared := s.slots[page/slotPages], 0
	for pages > 0 {
		mask, n := part(page, pages)
		cleared += bits.OnesCount64(atomic.AndUint64(&s.pending[page/wordBits], ^mask) & mask)
		page, pages = page+n, pages-n
	}
	if cleared == 0 {
		return
	}
	if one.left.Add(-int64(cleared)) == 0 {
		s.release(one)
	}
	if s.left.Add(-int64(cleared)) == 0 {
		s.complete()
	}
}

// giveUp records that nothing is missing any more: the process is gone.
func (s *space) giveUp() {
	for i := range s.slots {
		s.forget(i*slotPages, slotPages)
	}
}

// forget records that pages, of one slot, are not needed.
func (s *space) forget(page, pages int) {
	s.done(page, pages)
	s.family.forsake(page, pages)
}

// within calls found for the pages at addresses, in pieces of one slot.
func (s *space) within(start, end uint64, found func(page, pages int)) {
	for i := s.from(start); i < len(s.regions) && s.regions[i].start < end; i++ {
		r := s.regions[i]
		first, last := max(r.start, start), min(r.end, end)
		found(r.page+int((first-r.start)/s.pageSize), int((last-first)/s.pageSize))
	}
}

// remove records that pages were given back: they are zero from now on.
func (s *space) remove(start, end uint64) { s.within(start, end, s.forget) }

// take removes addresses and returns the regions that were there.
func (s *space) take(start, end uint64) []region {
	var taken, kept []region
	i := s.from(start)
	j := i
	for ; j < len(s.regions) && s.regions[j].start < end; j++ {
		r := s.regions[j]
		first, last := max(r.start, start), min(r.end, end)
		if r.start < first {
			kept = append(kept, region{start: r.start, end: first, page: r.page})
		}
		taken = append(taken, region{start: first, end: last, page: r.page + int((first-r.start)/s.pageSize)})
		if last < r.end {
			kept = append(kept, region{start: last, end: r.end,
				page: r.page + int((last-r.start)/s.pageSize)})
		}
	}
	s.regions = slices.Replace(s.regions, i, j, kept...)
	return taken
}

// unmap records that addresses are no longer mapped.
func (s *space) unmap(start, end uint64) {
	s.remove(start, end)
	s.take(start, end)
}

// remap records that a mapping was moved.
func (s *space) remap(from, to, length uint64) {
	moved := s.take(from, from+length)
	s.unmap(to, to+length)
	for i := range moved {
		moved[i].start = moved[i].start - from + to
		moved[i].end = moved[i].end - from + to
	}
	s.regions = slices.Insert(s.regions, s.from(to), moved...)
}
