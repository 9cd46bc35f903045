package pager

import (
	"errors"
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// readyPages bounds how much is filled before the processes run: it must not take longer than CRIU's
// remaining work.
const readyPages = 2048

// ready fills the pages that the processes are likely to touch first, before they run: pages that were sent
// more than once, which they constantly write, and the pages around them. Touching a missing page costs two
// changes of threads, on processors that are busy at that moment. All mappings are registered. It ends when
// the processes run: then their faults show what they touch.
func (f *filler) ready(running <-chan struct{}) {
	kernel.GiveWay(workerNiceness) // for CRIU and its restore proxy, for which everything waits
	left := readyPages
	for _, s := range f.living() {
		for _, page := range s.family.again {
			select {
			case <-running:
				return
			default:
			}
			if left -= aroundPages; left < 0 {
				return
			}
			// Pages that cannot be filled now, because a mapping changes or memory is short, are filled
			// later.
			if _, err := f.fillPages(s, page, page+aroundPages); err != nil && !errors.Is(err, unix.ENOMEM) {
				f.fail(err)
				return
			}
		}
	}
}

// partsAgain returns the first pages of the parts of a slot, of aroundPages each, that have a bit.
func partsAgain(again mask) []int {
	var parts []int
	for w, word := range again {
		for ; word != 0; word &= word - 1 {
			page := w*wordBits + bits.TrailingZeros64(word)
			if page -= page % aroundPages; len(parts) == 0 || parts[len(parts)-1] != page {
				parts = append(parts, page)
			}
		}
	}
	return parts
}
