package pager

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/godwit/godwit/internal/memory"
)

// families are the processes of the image, with the pages that they still miss.
type families struct {
	order      []*family
	byTask     map[memory.Task]*family
	remoteLeft atomic.Int64 // needed remote pages that have not come
	noRemote   func()       // called when that becomes 0
}

// lessRemote records that remote pages have come, or are not needed any more.
func (f *families) lessRemote(pages int) {
	if pages > 0 && f.remoteLeft.Add(-int64(pages)) == 0 {
		f.noRemote()
	}
}

// allKnown is called when all memory is registered: pages that no process has are not needed.
func (f *families) allKnown() {
	for _, m := range f.order {
		m.allKnown()
	}
}

// missing lists the needed remote pages that have not come.
func (f *families) missing(pageSize int) []memory.TaskMap {
	var maps []memory.TaskMap
	for _, m := range f.order {
		one := memory.TaskMap{Task: m.task}
		for _, slot := range m.slots {
			if slot.remote != nil {
				one.Areas = appendAway(one.Areas, slot, pageSize)
			}
		}
		if len(one.Areas) > 0 {
			maps = append(maps, one)
		}
	}
	return maps
}

func appendAway(areas []memory.Area, one *slot, pageSize int) []memory.Area {
	for w := range one.remote.away {
		for word := atomic.LoadUint64(&one.remote.away[w]); word != 0; {
			first := bits.TrailingZeros64(word)
			n := bits.TrailingZeros64(^(word >> first))
			mask, _ := part(first, n)
			word &^= mask
			start := one.address + uint64((w*wordBits+first)*pageSize)
			if last := len(areas) - 1; last >= 0 &&
				areas[last].Start+areas[last].Pages*uint64(pageSize) == start {
				areas[last].Pages += uint64(n)
			} else {
				areas = append(areas, memory.Area{Start: start, Pages: uint64(n)})
			}
		}
	}
	return areas
}

// wasRemote checks that pages, of one slot, stayed at the source.
func wasRemote(m *family, task memory.Task, address uint64, pages, pageSize int) error {
	refuse := func(address uint64) error {
		return fmt.Errorf("page %#x of process %d: %w", address, task, errNotRemote)
	}
	if m == nil {
		return refuse(address)
	}
	page, ok := m.at(address, pageSize)
	if !ok || m.slots[page/slotPages].remote == nil {
		return refuse(address)
	}
	for i := range pages {
		if !m.slots[page/slotPages].remote.all.has(page%slotPages + i) {
			return refuse(address + uint64(i*pageSize))
		}
	}
	return nil
}
