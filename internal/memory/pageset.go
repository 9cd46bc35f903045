package memory

import (
	"math"
	"math/bits"
	"slices"

	"github.com/godwit/godwit/internal/kernel"
)

// chunkPages is how many pages are kept together in the sets and tables of pages: 2 MiB of 4 KiB pages.
const chunkPages = 512

// pageSet is a set of pages of an address space. It takes 64 bytes and a map entry for each 2 MiB with
// pages in the set.
type pageSet map[uint64]*[chunkPages / 64]uint64

// add adds the pages from start to end to the set.
func (s pageSet) add(start, end uint64) {
	size := uint64(PageSize())
	for page := start / size; page < end/size; {
		chunk := s[page/chunkPages]
		if chunk == nil {
			chunk = new([chunkPages / 64]uint64)
			s[page/chunkPages] = chunk
		}
		for i := page % chunkPages; i < chunkPages && page < end/size; {
			n := min(64-i%64, end/size-page)
			chunk[i/64] |= ^uint64(0) >> (64 - n) << (i % 64)
			i, page = i+n, page+n
		}
	}
}

// remove removes the pages from start to end from the set.
func (s pageSet) remove(start, end uint64) {
	if len(s) == 0 {
		return
	}
	size := uint64(PageSize())
	for page := start / size; page < end/size; {
		i := page % chunkPages
		n := min(64-i%64, end/size-page)
		if chunk := s[page/chunkPages]; chunk != nil {
			chunk[i/64] &^= ^uint64(0) >> (64 - n) << (i % 64)
		}
		page += n
	}
}

// merge adds the pages of another set.
func (s pageSet) merge(other pageSet) {
	for key, pages := range other {
		chunk := s[key]
		if chunk == nil {
			chunk = new([chunkPages / 64]uint64)
			s[key] = chunk
		}
		for i, word := range pages {
			chunk[i] |= word
		}
	}
}

// count returns the number of pages in the set.
func (s pageSet) count() (pages uint64) {
	for _, chunk := range s {
		for _, word := range chunk {
			pages += uint64(bits.OnesCount64(word))
		}
	}
	return pages
}

func (s pageSet) has(address uint64) bool {
	page := address / uint64(PageSize())
	chunk := s[page/chunkPages]
	i := page % chunkPages
	return chunk != nil && chunk[i/64]&(1<<(i%64)) != 0
}

// in calls found for each range of pages between start and end that are in the set, or are not, as wanted
// says.
func (s pageSet) in(start, end uint64, wanted bool, found func(kernel.PageRange) error) error {
	size := uint64(PageSize())
	page, last := start/size, end/size
	chunks := s.chunks(page/chunkPages, (last+chunkPages-1)/chunkPages)
	var open bool // a range begins at start, and may continue
	for page < last {
		is, n := s.stretch(page)
		if chunks != nil && s[page/chunkPages] == nil {
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
func (s pageSet) chunks(first, end uint64) chunkList {
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
	i, _ := slices.BinarySearch(l, page/chunkPages)
	if i == len(l) {
		return math.MaxUint64
	}
	return l[i]*chunkPages - page
}

// split calls both for each range of pages between start and end that are in both sets, and returns those
// that are in s only.
func (s pageSet) split(other pageSet, start, end uint64,
	both func(kernel.PageRange)) (alone []kernel.PageRange) {
	size := uint64(PageSize())
	first, last := start/size, end/size
	chunks := s.chunks(first/chunkPages, (last+chunkPages-1)/chunkPages)
	for number := first / chunkPages; number*chunkPages < last; number++ {
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
			others = &[chunkPages / 64]uint64{}
		}
		for i, word := range chunk {
			at := number*chunkPages + uint64(i)*64
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
func (s pageSet) stretch(page uint64) (is bool, pages uint64) {
	chunk := s[page/chunkPages]
	if chunk == nil {
		return false, chunkPages - page%chunkPages
	}
	i := page % chunkPages
	word := chunk[i/64] >> (i % 64)
	left := 64 - i%64
	if word&1 == 0 {
		return false, min(uint64(bits.TrailingZeros64(word)), left)
	}
	return true, min(uint64(bits.TrailingZeros64(^word)), left)
}

// digest identifies a page's content. It is keyed by a secret of the process, so that nobody can construct
// two contents with the same digest, and long enough that this does not happen by chance.
type digest [2]uint64

// digests remembers the content of pages: 8 KiB for each 2 MiB of address space with remembered pages.
type digests map[uint64]*[chunkPages]digest

// changed reports whether a page's content differs from the remembered one, and remembers the new content.
func (d digests) changed(address uint64, is digest) bool {
	page := address / uint64(PageSize())
	chunk := d[page/chunkPages]
	if chunk == nil {
		chunk = new([chunkPages]digest)
		d[page/chunkPages] = chunk
	}
	was := &chunk[page%chunkPages]
	if *was == is {
		return false
	}
	*was = is
	return true
}
