package memory

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// ordered reports whether the pages of a process are ordered before they leave. Pages written meanwhile
// must be easy to find, and a process with descriptors for direct transfers is read differently anyway.
func (s *Source) ordered(t *task, frozen bool) bool {
	return t.tracking == WriteProtect && !t.hectic && !frozen && !t.direct.used && !s.Leaving()
}

// sendOrdered sends the written pages of all mappings. Pages that will be written soon come last.
func (p pass) sendOrdered(ctx context.Context, areas []area) error {
	t, r := p.t, p.r
	w := newWaiting(p.ordering, areas, time.Now())
	for _, m := range areas {
		err := p.find(ctx, m, func(one kernel.PageRange) {
			w.add(one)
			t.along.Remove(one.Start, one.End)
		})
		if err != nil {
			return err
		}
	}
	r.stats.TakenAlong += t.along.Count()
	t.along = w.anew
	defer func() { r.stats.Early += w.early }()
	if w.count <= w.few {
		return p.sendFound(ctx, w.found, everywhere)
	}
	w.cut()
	defer expect(r.sink, false)
	for looks := 0; len(w.queue) > 0; {
		if !t.hectic && !time.Now().Before(w.looks[1]) {
			err := p.glance(w, looks)
			if err == nil && !t.hectic {
				err = p.look(ctx, w)
			}
			if err != nil {
				return err
			}
			looks++
		}
		next := w.take()
		expect(r.sink, !next.busy.IsZero() || next.loss > 0)
		m := areas[next.area]
		m.Start, m.End = next.start, next.end
		// Again: pages written since they were found are included, and are not found again.
		err := p.find(ctx, m, func(one kernel.PageRange) { w.wrote(one, time.Now()) })
		if err == nil {
			err = p.sendFound(ctx, w.found, kernel.PageRange{Start: m.Start, End: m.End})
		}
		if err != nil {
			return err
		}
		w.found.Remove(m.Start, m.End)
	}
	// No later round finds these pages. If parts and mappings are not what they are taken for, the pages
	// leave now.
	return p.sendFound(ctx, w.found, everywhere)
}

func expect(sink Sink, again bool) {
	if expecter, is := sink.(Expecter); is {
		expecter.Expect(again)
	}
}

// hecticShare is the share of the remaining pages that, if written before the first look, means that no
// order helps. A look costs the process another fault for each page that it writes afterwards, so there are
// no more looks then.
const hecticShare = 8

// glance decides before the first look whether to look at all.
func (p pass) glance(w *waiting, looks int) error {
	if looks > 0 {
		return nil
	}
	written, all := uint64(0), uint64(0)
	err := w.each(false, func(m area) error {
		all += (m.End - m.Start) / uint64(PageSize())
		return peek(p.t, m, func(one kernel.PageRange) { written += countPages([]kernel.PageRange{one}) })
	})
	p.t.hectic = written > all/hecticShare
	return err
}

// peek calls found for pages of a mapping that were written since the last look, without changing their
// state.
func peek(t *task, m area, found func(kernel.PageRange)) error {
	_, err := scan(m.Start, m.End, t.pagemap.WrittenSoFar, func(ranges []kernel.PageRange) error {
		for _, one := range ranges {
			found(one)
		}
		return nil
	})
	if errors.Is(err, unix.EPERM) { // a new mapping: a later round finds it
		return nil
	}
	return err
}

// look finds out which remaining pages, and which sent pages, are being written.
func (p pass) look(ctx context.Context, w *waiting) error {
	r := p.r
	began, pages, before := time.Now(), uint64(0), r.stats.Read+r.stats.Write
	err := w.each(false, func(m area) error {
		return p.find(ctx, m, func(one kernel.PageRange) {
			pages += countPages([]kernel.PageRange{one})
			w.wrote(one, began)
		})
	})
	if err == nil {
		err = w.each(true, func(m area) error {
			return peek(p.t, m, func(one kernel.PageRange) { w.wroteAgain(one, began) })
		})
	}
	now := time.Now() // reading and sending at once does not count as part of a look
	w.looked(now, now.Sub(began)-(r.stats.Read+r.stats.Write-before), pages)
	return err
}

// find calls found for the written pages of a mapping, which are to be sent later. Pages that have to be
// read to know whether they were written, and swapped-out pages, are not postponed.
func (p pass) find(ctx context.Context, m area, found func(kernel.PageRange)) error {
	t, r := p.t, p.r
	p.begin()
	err := t.tracker.written(t.pagemap, m, func(ranges []kernel.PageRange) error {
		t.direct.note(ranges, time.Now())
		if t.tracker.compares() {
			return r.add(ctx, ranges)
		}
		for i, one := range ranges {
			var err error
			switch {
			case one.Categories&kernel.PageZero != 0:
			case one.Categories&kernel.PageSwapped != 0:
				err = r.add(ctx, ranges[i:i+1])
			default:
				found(one)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.flush(ctx)
}

// everywhere is the range of all addresses.
var everywhere = kernel.PageRange{End: maxAddress}

// sendFound sends the found pages in a range.
func (p pass) sendFound(ctx context.Context, found pageset.Set, there kernel.PageRange) error {
	t, r := p.t, p.r
	p.begin()
	t.tracker.counts() // pages that had to be compared have left
	err := found.In(there.Start, there.End, true,
		func(one kernel.PageRange) error { return r.add(ctx, []kernel.PageRange{one}) })
	if err != nil {
		return err
	}
	return r.flush(ctx)
}
