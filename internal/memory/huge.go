package memory

import (
	"slices"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// hugePages remembers which pages of a process were huge before they were write-protected. The kernel
// splits those that are written then (mm/huge_memory.c, do_huge_pmd_wp_page), and khugepaged may take long
// to find them: it scans 16 MiB in 10 seconds. Meanwhile a process that reads and writes at random is
// slower by up to a sixth.
type hugePages struct {
	space *kernel.AddressSpace
	seen  pageset.Set
}

func (h *hugePages) note(ranges []kernel.PageRange) {
	for _, r := range ranges {
		if r.Categories&kernel.PageHuge != 0 {
			h.seen.Add(r.Start, r.End)
		}
	}
}

// restore makes complete ones huge again. It leaves failures to the kernel, and so ended processes, and
// machines whose huge pages are larger than a chunk of pageset.Set.
func (h *hugePages) restore() {
	size := uint64(chunkPages * PageSize())
	if len(h.seen) == 0 || PageSize()/8 != chunkPages { // a page table has an entry of 8 bytes for each page
		return
	}
	pagemap, err := h.space.OpenPagemap()
	if err != nil {
		return
	}
	defer pagemap.Close()
	for key, pages := range h.seen {
		start := key * size
		if slices.ContainsFunc(pages[:], func(word uint64) bool { return word != ^uint64(0) }) {
			continue // a part of it was
		}
		split, err := pagemap.Small(start, start+size)
		if err != nil {
			return
		}
		if split {
			_ = h.space.Collapse(start, start+size) // or the kernel does it, when it comes to it
		}
	}
}
