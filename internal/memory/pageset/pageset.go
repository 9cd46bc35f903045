// Package pageset has sets of pages of an address space. Sets are small, and handle ranges
// quickly, because a mapping may be far larger than its contents.
package pageset

import (
	"math"
	"math/bits"
	"os"
	"slices"

	"github.com/godwit/godwit/internal/kernel"
)

// ChunkPages is how many pages are kept together in the sets and tables of pages: 2 MiB of 4 KiB pages.
const ChunkPages = 512

// Set is a set of pages of an address space. It takes 64 bytes and a map entry for each 2 MiB with
// pages in the set.
type Set map[uint64]*[ChunkPages / 64]uint64

// Add adds the pages from start to end to the set.
func (s Set) Add(start, end uint64) {
	size := uint64(os.Getpagesize())
	for page := start / size; page < end/size; {
		chunk := s[page/ChunkPages]
		if chunk == nil {
			chunk = new([ChunkPages / 64]uint64)
			s[page/ChunkPages] = chunk
		}
		for i := page % ChunkPages; i < ChunkPages && page < end/size; {
			n := min(64-i%64, end/size-page)
			chunk[i/64] |= ^uint64(0) >> (64 - n) << (i % 64)
			i, page = i+n, page+n
		}
	}
}

// Remove removes the pages from start to end from the set.
func (s Set) Remove(start, end uint64) {
	if len(s) == 0 {
		return
	}
	size := uint64(os.Getpagesize())
	for page := start / size; page < end/size; {
		i := page % ChunkPages
		n := min(64-i%64, end/size-page)
		if chunk := s[page/ChunkPages]; chunk != nil {
			chunk[i/64] &^= ^uint64(0) >> (64 - n) << (i % 64)
		}
		page += n
	}
}

// Merge adds the pages of another set.
func (s Set) Merge(other Set) {
	for key, pages := range other {
		chunk := s[key]
		if chunk == nil {
			chunk = new([ChunkPages / 64]uint64)
			s[key] = chunk
		}
		for i, word := range pages {
			chunk[i] |= word
		}
	}
}

// Count returns the number of pages in the set.
func (s Set) Count() (pages uint64) {
	for _, chunk := range s {
		for _, word := range chunk {
			pages += uint64(bits.OnesCount64(word))
		}
	}
	return pages
}

// Has reports whether the page at an address is in the set.
func (s Set) Has(address uint64) bool {
	page := address / uint64(os.Getpagesize())
	chunk := s[page/ChunkPages]
	i := page % ChunkPages
	return chunk != nil && chunk[i/64]&(1<<(i%64)) != 0
}

// In calls found for each range of pages between start and end that are in the set, or are not, as wanted
// says.
func (s Set) In(start, end uint64, wanted bool, found func(kernel.PageRange) error) error {
	size := uint64(os.Getpagesize())
	page, last := start/size, end/size
	chunks := s.chunks(page/ChunkPages, (last+ChunkPages-1)/ChunkPages)
	var open bool // a range begins at start, and may continue
	for page < last {
		is, n := s.stretch(page)
		if chunks != nil && s[page/ChunkPages] == nil {
			n = chunks.until(page)
		}
		n = min(n, last-page)
		if is == wanted && !open {
			start, open = page*size, true
		}
		if is != wanted && open {
			open = false
			if err := found(kernel.PageRange{Start: start, End: page * size}); err != nil {
				return err
			}
		}
		page += n
	}
	if !open {
		return nil
	}
	return found(kernel.PageRange{Start: start, End: last * size})
}

// chunkList are the numbers of chunks of a set, in order.
type chunkList []uint64

// chunks lists the chunks from first to end, if that is quicker than checking each: mappings may be far
// larger than their contents. Otherwise it returns nil.
func (s Set) chunks(first, end uint64) chunkList {
	if end-first <= uint64(len(s)) {
		return nil
	}
	list := make(chunkList, 0, len(s))
	for number := range s {
		if number >= first && number < end {
			list = append(list, number)
		}
	}
	slices.Sort(list)
	return list
}

// until returns how many pages there are from a page, which is in no chunk, to the next chunk.
func (l chunkList) until(page uint64) uint64 {
	i, _ := slices.BinarySearch(l, page/ChunkPages)
	if i == len(l) {
		return math.MaxUint64
	}
	return l[i]*ChunkPages - page
}

// Split calls both for each range of pages between start and end that are in both sets, and returns those
// that are in s only.
func (s Set) Split(other Set, start, end uint64,
	both func(kernel.PageRange)) (alone []kernel.PageRange) {
	size := uint64(os.Getpagesize())
	first, last := start/size, end/size
	chunks := s.chunks(first/ChunkPages, (last+ChunkPages-1)/ChunkPages)
	for number := first / ChunkPages; number*ChunkPages < last; number++ {
		if chunks != nil {
			i, _ := slices.BinarySearch(chunks, number)
			if i == len(chunks) {
				break
			}
			number = chunks[i]
		}
		chunk, others := s[number], other[number]
		if chunk == nil {
			continue
		}
		if others == nil {
			others = &[ChunkPages / 64]uint64{}
		}
		for i, word := range chunk {
			at := number*ChunkPages + uint64(i)*64
			word &= within(at, first, last)
			eachRange(word&others[i], at*size, size, both)
			eachRange(word&^others[i], at*size, size, func(r kernel.PageRange) { alone = append(alone, r) })
		}
	}
	return alone
}

// within has a bit for each of the 64 pages from page on that are between first and last.
func within(page, first, last uint64) uint64 {
	if page >= last || page+64 <= first {
		return 0
	}
	mask := ^uint64(0)
	if first > page {
		mask <<= first - page
	}
	if page+64 > last {
		mask &= ^uint64(0) >> (page + 64 - last)
	}
	return mask
}

// eachRange calls found for the ranges of bits of a word, of which the first is the page at an address.
func eachRange(word, address, size uint64, found func(kernel.PageRange)) {
	for bit := uint64(0); word != 0; {
		skip := uint64(bits.TrailingZeros64(word))
		word >>= skip
		length := uint64(bits.TrailingZeros64(^word))
		bit += skip
		found(kernel.PageRange{Start: address + bit*size, End: address + (bit+length)*size})
		bit += length
		if length == 64 {
			return
		}
		word >>= length
	}
}

// stretch reports whether a page is in the set, and for at least how many pages from there on the answer is
// the same.
func (s Set) stretch(page uint64) (is bool, pages uint64) {
	chunk := s[page/ChunkPages]
	if chunk == nil {
		return false, ChunkPages - page%ChunkPages
	}
	i := page % ChunkPages
	word := chunk[i/64] >> (i % 64)
	left := 64 - i%64
	if word&1 == 0 {
		return false, min(uint64(bits.TrailingZeros64(word)), left)
	}
	return true, min(uint64(bits.TrailingZeros64(^word)), left)
}
