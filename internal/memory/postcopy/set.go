package postcopy

import "math/bits"

const wordBits = 64

// set is a set of page numbers.
type set []uint64

func newSet(pages int) set { return make(set, (pages+wordBits-1)/wordBits) }

func (s set) has(n int) bool { return s[n/wordBits]>>(n%wordBits)&1 != 0 }

// words visits the words with pages of [from, to), and the bits in them that are meant.
func (s set) words(from, to int, visit func(word *uint64, mask uint64)) {
	for from < to {
		bit := from % wordBits
		n := min(to-from, wordBits-bit)
		visit(&s[from/wordBits], ^uint64(0)>>(wordBits-n)<<bit)
		from += n
	}
}

func (s set) add(from, to int) {
	s.words(from, to, func(word *uint64, mask uint64) { *word |= mask })
}

func (s set) remove(from, to int) {
	s.words(from, to, func(word *uint64, mask uint64) { *word &^= mask })
}

func (s set) count(from, to int) int {
	n := 0
	s.words(from, to, func(word *uint64, mask uint64) { n += bits.OnesCount64(*word & mask) })
	return n
}

// next returns the first page of [from, to) that is in the set; to if none is.
func (s set) next(from, to int) int {
	for from < to {
		if rest := s[from/wordBits] >> (from % wordBits); rest != 0 {
			return min(to, from+bits.TrailingZeros64(rest))
		}
		from = (from/wordBits + 1) * wordBits
	}
	return to
}

// last returns the last page of [from, to) that is in the set; less than from if none is.
func (s set) last(from, to int) int {
	for to > from {
		if rest := s[(to-1)/wordBits] << (wordBits - 1 - (to-1)%wordBits); rest != 0 {
			return to - 1 - bits.LeadingZeros64(rest)
		}
		to = (to - 1) / wordBits * wordBits
	}
	return from - 1
}

// gap returns the first page of [from, to) that is not in the set; to if all are.
func (s set) gap(from, to int) int {
	for from < to {
		if rest := ^s[from/wordBits] >> (from % wordBits); rest != 0 {
			return min(to, from+bits.TrailingZeros64(rest))
		}
		from = (from/wordBits + 1) * wordBits
	}
	return to
}

// intersect removes everything that is not in another set of the same pages.
func (s set) intersect(other set) {
	for i := range s {
		s[i] &= other[i]
	}
}
