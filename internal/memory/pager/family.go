package pager

import (
	"math/bits"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/godwit/godwit/internal/memory"
)

const (
	wordBits  = 64
	slotWords = len(memory.ImageSlot{}.Have)
	slotPages = slotWords * wordBits // pages in a slot; with large pages there are fewer
)

// mask has a bit for each page of a slot. If several goroutines use it, it is changed atomically.
type mask [slotWords]uint64

func (m *mask) has(page int) bool {
	return atomic.LoadUint64(&m[page/wordBits])>>(page%wordBits)&1 != 0
}

// part returns the bits of one word of a mask from page on, and their number, at most pages.
func part(page, pages int) (bits uint64, n int) {
	bit := page % wordBits
	n = min(pages, wordBits-bit)
	return ^uint64(0) >> (wordBits - n) << bit, n
}

// slot is a part of the image whose pages several address spaces may be missing: those of a process and of
// children that it has made since.
type slot struct {
	address uint64       // its address in the task when the image was made
	offset  uint64       // in the image
	left    atomic.Int64 // pages that are missing in some space
	remote  *remoteBits  // nil: none of its pages stayed at the source
}

// remoteBits describes the pages of a slot that stayed at the source.
type remoteBits struct {
	all         mask // all such pages; never changed
	away        mask // of these, needed ones that have not come
	zero        mask // came as zeros
	lost        mask // were given up
	remoteFault mask // requested on the present connection; the link's lock guards it
}

// kind is what a missing page becomes.
type kind uint8

const (
	content kind = iota // the image's content
	zeros
	lost // every access to it fails
)

// away reports whether a page is still at the source.
func (s *slot) away(page int) bool { return s.remote != nil && s.remote.away.has(page) }

func (s *slot) kind(page int) kind {
	switch {
	case s.remote == nil:
		return content
	case s.remote.lost.has(page):
		return lost
	case s.remote.zero.has(page):
		return zeros
	}
	return content
}

// family is a process of the image with its children, and their children: all address spaces that are
// missing its pages. Pages are numbered through the slots, in the same way for all of them.
type family struct {
	task  memory.Task
	slots []*slot // in order of address
	// first pages of the parts, of aroundPages each, with a page that was sent more than once
	again    []int
	forsaken func(n int) // called, with the lock, when this many remote pages are no longer needed

	mu      sync.Mutex // taken after the lock of a space
	known   bool       // all processes are known: pages that they do not need are not needed
	spaces  []*space   // open ones
	waiting map[int][]fault
}

// newFamily makes the family of a task, whose slots are in order of address. It also returns the number of
// its remote pages.
func newFamily(task memory.Task, image []memory.ImageSlot) (m *family, remote int) {
	m = &family{task: task, waiting: map[int][]fault{}}
	for i := range image {
		one := &slot{address: image[i].Address, offset: image[i].Offset}
		if n := image[i].RemotePages(); n > 0 {
			one.remote = &remoteBits{all: image[i].Remote, away: image[i].Remote}
			remote += n
		}
		m.slots = append(m.slots, one)
		for _, page := range partsAgain(image[i].Again) {
			m.again = append(m.again, i*slotPages+page)
		}
	}
	return m, remote
}

// at returns the page that was at an address when the image was made.
func (m *family) at(address uint64, pageSize int) (page int, ok bool) {
	base := address - address%memory.SlotBytes
	i := sort.Search(len(m.slots), func(i int) bool { return m.slots[i].address >= base })
	if i == len(m.slots) || m.slots[i].address != base {
		return 0, false
	}
	return i*slotPages + int((address-base)/uint64(pageSize)), true
}

// join adds an address space.
func (m *family) join(s *space) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = true
	m.spaces = append(m.spaces, s)
}

// leave removes an address space and returns its waiting faults.
func (m *family) leave(s *space) []fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spaces = slices.DeleteFunc(m.spaces, func(other *space) bool { return other == s })
	var left []fault
	for page := range m.waiting {
		left = m.pick(left, page, s)
	}
	return left
}

// living returns the present address spaces.
func (m *family) living() []*space {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.spaces)
}

// await records a fault that waits for a page, if the page is still away, and calls request with the lock.
func (m *family) await(page int, one fault, request func()) bool {
	at := m.slots[page/slotPages]
	if !at.away(page % slotPages) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !at.away(page % slotPages) {
		return false // It has come. Whoever stored it looks for waiting faults after that.
	}
	one.fetched = true
	m.waiting[page] = append(m.waiting[page], one)
	request()
	return true
}

// pick removes and returns the faults that wait for a page, in one space or (nil) in all. The caller holds
// the lock.
func (m *family) pick(to []fault, page int, of *space) []fault {
	waiting := m.waiting[page]
	if of == nil {
		delete(m.waiting, page)
		return append(to, waiting...)
	}
	others := waiting[:0]
	for _, one := range waiting {
		if one.space == of {
			to = append(to, one)
		} else {
			others = append(others, one)
		}
	}
	if m.waiting[page] = others; len(others) == 0 {
		delete(m.waiting, page)
	}
	return to
}

// waitFor removes and returns the faults that wait for pages, in one space or (nil) in all.
func (m *family) waitFor(page, pages int, of *space) []fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []fault
	if pages > len(m.waiting) {
		for at := range m.waiting {
			if at >= page && at < page+pages {
				found = m.pick(found, at, of)
			}
		}
		return found
	}
	for at := page; at < page+pages; at++ {
		if len(m.waiting[at]) > 0 {
			found = m.pick(found, at, of)
		}
	}
	return found
}

// forsake gives up remote pages of one slot that are no longer needed.
func (m *family) forsake(page, pages int) {
	first, remote := page/slotPages*slotPages, m.slots[page/slotPages].remote
	if remote == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known {
		return
	}
	gone := 0
	for w := (page - first) / wordBits; w <= (page-first+pages-1)/wordBits; w++ {
		if atomic.LoadUint64(&remote.away[w]) == 0 {
			continue
		}
		needed := uint64(0)
		for _, s := range m.spaces {
			needed |= atomic.LoadUint64(&s.pending[first/wordBits+w])
		}
		gone += bits.OnesCount64(atomic.AndUint64(&remote.away[w], needed) &^ needed)
	}
	if gone > 0 {
		m.forsaken(gone)
	}
}

// allKnown records that no further processes will come.
func (m *family) allKnown() {
	m.mu.Lock()
	m.known = true
	m.mu.Unlock()
	for i := range m.slots {
		m.forsake(i*slotPages, slotPages)
	}
}
