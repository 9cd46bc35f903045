package pages

import (
	"encoding/binary"
	"fmt"
)

const (
	word   = 8
	header = 2 * word // of a page: its number, and how often it was written
	golden = 0x9E3779B97F4A7C15
)

// form describes the content of pages. A page that was written n times changes in its header and in one of
// its parts, which take turns; so its number and n determine its whole content.
type form struct {
	part int  // bytes
	half bool // every second word is the page's number
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// content returns word i of a part whose last write was the nth write of its page.
func (f form) content(number, n, i uint64) uint64 {
	if f.half && i&1 != 0 {
		return number
	}
	return mix(mix(number<<32^n) + i*golden)
}

// lastWritten returns when part number i of so many was last written: 0 when the page was made.
func lastWritten(n, i, parts uint64) uint64 {
	if n < i {
		return 0
	}
	return n - (n-i)%parts
}

// make writes a whole page, which counts as written 0 times.
func (f form) make(page []byte, number uint64) {
	for i := range uint64(len(page) / f.part) {
		f.writePart(page, number, 0, i)
	}
	f.writeHeader(page, number, 0)
}

// write writes a page for the nth time.
func (f form) write(page []byte, number, n uint64) {
	f.writePart(page, number, n, n%uint64(len(page)/f.part))
	f.writeHeader(page, number, n)
}

func (f form) writeHeader(page []byte, number, n uint64) {
	binary.LittleEndian.PutUint64(page, number)
	binary.LittleEndian.PutUint64(page[word:], n)
}

func (f form) writePart(page []byte, number, n, part uint64) {
	first := int(part) * f.part
	for at := first; at < first+f.part; at += word {
		binary.LittleEndian.PutUint64(page[at:], f.content(number, n, uint64(at/word)))
	}
}

// verify returns what is wrong with a page.
func (f form) verify(page []byte, number, n uint64) error {
	if got := binary.LittleEndian.Uint64(page); got != number {
		return fmt.Errorf("page %d: it is page %d", number, got)
	}
	if got := binary.LittleEndian.Uint64(page[word:]); got != n {
		return fmt.Errorf("page %d: it was written %d times, and is as it was after %d", number, n, got)
	}
	parts := uint64(len(page) / f.part)
	for i := range parts {
		last := lastWritten(n, i, parts)
		for at := max(int(i)*f.part, header); at < int(i+1)*f.part; at += word {
			if binary.LittleEndian.Uint64(page[at:]) != f.content(number, last, uint64(at/word)) {
				return fmt.Errorf("page %d: after %d writes the word at %d is not what it must be", number,
					n, at)
			}
		}
	}
	return nil
}
