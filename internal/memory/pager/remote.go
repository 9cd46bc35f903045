package pager

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync/atomic"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// errNotRemote is the error for pages that never stayed at the source: their sender lies.
var errNotRemote = errors.New("the page was not left at the source")

// arrive takes a run of remote pages, whose content it reads from r. It is for one goroutine. It reads and
// drops pages that have already come, and pages that are not needed any more.
func (f *filler) arrive(run memory.Run, r io.Reader) error {
	m := f.byTask[run.Task]
	for address, left := run.Address, int(run.Pages); left > 0; {
		from := int(address % memory.SlotBytes / uint64(f.pageSize))
		pages := min(left, memory.SlotBytes/f.pageSize-from)
		if err := wasRemote(m, run.Task, address, pages, f.pageSize); err != nil {
			return err
		}
		page, _ := m.at(address, f.pageSize)
		if err := f.take(m, page, pages, run.Zero, r); err != nil {
			return fmt.Errorf("take %d pages at %#x of process %d: %w", pages, address, run.Task, err)
		}
		address, left = address+uint64(pages*f.pageSize), left-pages
	}
	return nil
}

// take stores remote pages of one slot.
func (f *filler) take(m *family, page, pages int, zero bool, r io.Reader) error {
	at := m.slots[page/slotPages]
	for end := page + pages; page < end; {
		away, n := at.away(page%slotPages), 1
		for page+n < end && at.away((page+n)%slotPages) == away {
			n++
		}
		var err error
		switch size := int64(n * f.pageSize); {
		case !away:
			f.counts.ignored.Add(int64(n))
			if !zero {
				_, err = io.CopyN(io.Discard, r, size)
			}
		case !zero:
			offset := int64(at.offset) + int64(page%slotPages*f.pageSize)
			_, err = io.ReadFull(r, f.data[offset:offset+size])
		}
		if err != nil {
			return err
		}
		if away && zero {
			f.here(m, page, n, zeros)
		} else if away {
			f.here(m, page, n, content)
		}
		page += n
	}
	return nil
}

// here records the arrival of remote pages of one slot, and serves the faults that wait for them. It
// returns how many of the pages were still needed.
func (f *filler) here(m *family, page, pages int, as kind) int {
	remote := m.slots[page/slotPages].remote
	came := 0
	for at, left := page%slotPages, pages; left > 0; {
		bit, n := part(at, left)
		away := &remote.away[at/wordBits]
		switch as { // before the page stops being away; it does no harm to a page that is not needed
		case zeros:
			atomic.OrUint64(&remote.zero[at/wordBits], bit&atomic.LoadUint64(away))
		case lost:
			atomic.OrUint64(&remote.lost[at/wordBits], bit&atomic.LoadUint64(away))
		}
		came += bits.OnesCount64(atomic.AndUint64(away, ^bit) & bit)
		at, left = at+n, left-n
	}
	f.lessRemote(came)
	for _, one := range m.waitFor(page, pages, nil) {
		f.tend(one)
	}
	if len(m.living()) == 0 {
		return came
	}
	if f.came.put(arrival{m, page, pages}) {
		f.work.ring()
	} else {
		f.look()
	}
	return came
}

// giveUp makes every page that is still remote inaccessible.
func (f *filler) giveUp() error {
	if err := kernel.ProbePoison(); err != nil {
		return fmt.Errorf("let accesses to missing pages fail: %w: the kernel cannot do it "+
			"(UFFDIO_POISON, Linux 6.6); "+
			"the container can be killed", err)
	}
	for _, m := range f.order {
		for i, one := range m.slots {
			if one.remote == nil {
				continue
			}
			f.counts.lost.Add(int64(f.here(m, i*slotPages, slotPages, lost)))
		}
	}
	return nil
}
