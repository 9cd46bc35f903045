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

// region says where pages of the image belong in an address space. It is within one slot.
type region struct {
	start, end uint64
	page       int // of the address space's slots, at start
}

// space is the address space of one process. Its pages are numbered through its slots.
//
// The lock rule: who copies holds mu for reading from the look at what is missing until the copy is
// noted; who takes a message from the userfaultfd holds mu for writing from before the read until
// what it says is noted. The kernel tells that pages will be removed, or that the process has
// forked, before it does it, and waits until the message is read. So no copy that was begun before
// the removal can come after it.
//
// A page that is still at the source is missing, and not here: who copies takes only what is here.
// That it is here is noted when it is, without the lock, and it never goes away again; so the rule
// holds for pages that come meanwhile, too.
type space struct {
	family   *family
	faults   *kernel.Faults
	slots    []*slot
	pageSize uint64
	release  func(*slot) // called when no space is missing pages of it any more
	complete func()      // called when nothing is missing any more

	mu      sync.RWMutex
	regions []region // in order of address
	closed  bool

	pending []uint64 // a bit for each page that is missing; changed atomically
	left    atomic.Int64
	cursor  atomic.Uint64 // address from which the background goes on
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

// offset is where a page is in the image.
func (s *space) offset(page int) uint64 {
	return s.slots[page/slotPages].offset + uint64(page%slotPages)*s.pageSize
}

// from is the index of the first region that ends after address.
func (s *space) from(address uint64) int {
	return sort.Search(len(s.regions), func(i int) bool { return s.regions[i].end > address })
}

// at is the number of the page at an address; false if there is none of the image.
func (s *space) at(address uint64) (page int, ok bool) {
	i := s.from(address)
	if i == len(s.regions) || s.regions[i].start > address {
		return 0, false
	}
	return s.regions[i].page + int((address-s.regions[i].start)/s.pageSize), true
}

// find is the number of the page at an address; false if none is missing there.
func (s *space) find(address uint64) (page int, missing bool) {
	page, ok := s.at(address)
	return page, ok && s.missing(page)
}

func (s *space) missing(page int) bool {
	return atomic.LoadUint64(&s.pending[page/wordBits])>>(page%wordBits)&1 != 0
}

// locate is where a page is in the address space now, and how many pages from it on are in the same region.
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

// stretch is a number of consecutive missing pages that are here, and become the same.
type stretch struct {
	address uint64
	page    int
	pages   int
	kind    kind
}

// stretch is the stretch that begins with a page, at most so many.
func (s *space) stretch(address uint64, page, most int) stretch {
	found := stretch{address: address, page: page, pages: 1, kind: s.kind(page)}
	for next := page + 1; next < page+most && s.here(next/wordBits)>>(next%wordBits)&1 != 0 &&
		s.kind(next) == found.kind; next++ {
		found.pages++
	}
	return found
}

func (s *space) kind(page int) kind { return s.slots[page/slotPages].kind(page % slotPages) }

// next finds the first missing pages that are here at or after an address, at most so many.
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

// here are the pages of a word that are missing and can be filled.
func (s *space) here(word int) uint64 {
	missing := atomic.LoadUint64(&s.pending[word])
	if remote := s.slots[word/slotWords].remote; remote != nil && missing != 0 {
		missing &^= atomic.LoadUint64(&remote.away[word%slotWords])
	}
	return missing
}

// firstHere is the first missing page that can be filled from first on, before end.
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

// claim takes the next missing pages for one of the workers that fill in the background. In the end
// two may get the same: the second finds them there.
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

// done notes that pages, of one slot, are no longer missing.
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

// giveUp notes that nothing is missing any more: the process is gone.
func (s *space) giveUp() {
	for i := range s.slots {
		s.forget(i*slotPages, slotPages)
	}
}

// forget notes that pages, of one slot, are not needed.
func (s *space) forget(page, pages int) {
	s.done(page, pages)
	s.family.forsake(page, pages)
}

// within are the pages that are at addresses, in pieces of one slot.
func (s *space) within(start, end uint64, found func(page, pages int)) {
	for i := s.from(start); i < len(s.regions) && s.regions[i].start < end; i++ {
		r := s.regions[i]
		first, last := max(r.start, start), min(r.end, end)
		found(r.page+int((first-r.start)/s.pageSize), int((last-first)/s.pageSize))
	}
}

// remove notes that pages were given back: they are zero from now on.
func (s *space) remove(start, end uint64) { s.within(start, end, s.forget) }

// take cuts addresses out and returns the regions that were there.
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

// unmap notes that addresses are no longer mapped.
func (s *space) unmap(start, end uint64) {
	s.remove(start, end)
	s.take(start, end)
}

// remap notes that a mapping was moved.
func (s *space) remap(from, to, length uint64) {
	moved := s.take(from, from+length)
	s.unmap(to, to+length)
	for i := range moved {
		moved[i].start = moved[i].start - from + to
		moved[i].end = moved[i].end - from + to
	}
	s.regions = slices.Insert(s.regions, s.from(to), moved...)
}
