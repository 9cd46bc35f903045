package pager

import (
	"errors"
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// readyPages bounds what is filled before the processes run: it must not take longer than what CRIU
// has still to do.
const readyPages = 2048

// ready fills what the processes are likely to touch first, before they run: what was sent more
// than once is what they write to all the time, and with it what is about it. A page that is
// missing when it is touched costs them two changes of threads, on processors that many want at
// that moment. All their mappings are registered. It ends when they run: then they say themselves
// what they touch.
func (f *filler) ready(running <-chan struct{}) {
	kernel.GiveWay(workerNiceness) // to CRIU and its restore proxy, of which all wait
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
			// What cannot be filled now, because a mapping changes or memory is short, is filled later.
			if _, err := f.fillPages(s, page, page+aroundPages); err != nil && !errors.Is(err, unix.ENOMEM) {
				f.fail(err)
				return
			}
		}
	}
}

// partsAgain are the first pages of the parts of a slot, of aroundPages each, of which there is a bit.
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
