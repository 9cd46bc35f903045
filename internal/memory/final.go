package memory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// Map lists the pages that the processes hold: what a restore must provide, including remote pages. The
// processes are frozen, and a final round has been. Map uses the same criteria by which CRIU chooses pages
// to dump.
func (s *Source) Map() ([]TaskMap, error) {
	var maps []TaskMap
	for _, t := range s.tasks.inOrder() {
		m, err := t.contents()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, t.describe(err)
		}
		maps = append(maps, m)
	}
	for _, o := range s.shared.inOrder() {
		maps = append(maps, o.contents())
	}
	return maps, nil
}

// hold records in the first final round which pages there are: the kernel takes 2 ms per GiB, during which
// CRIU dumps. After that, pages are only added, which later final rounds find (holdToo), and mappings only
// vanish, which contents checks.
func (t *task) hold(areas []area, frozen bool) error {
	if !frozen {
		t.held = nil
		return nil
	}
	if t.held != nil {
		return nil
	}
	t.held, t.heldAreas = pageset.Set{}, areas
	for _, m := range areas {
		for at := m.Start; at < m.End; {
			ranges, next, err := t.pagemap.Anonymous(at, m.End)
			if err != nil {
				return err
			}
			t.holdToo(ranges)
			at = next
		}
	}
	return nil
}

// holdToo adds to the result of hold.
func (t *task) holdToo(ranges []kernel.PageRange) {
	if t.held == nil {
		return
	}
	for _, r := range ranges {
		if r.Categories&kernel.PageZero == 0 {
			t.held.Add(r.Start, r.End)
		}
	}
}

func (t *task) contents() (TaskMap, error) {
	result := TaskMap{Task: t.id}
	err := t.eachHeld(func(m area) error {
		first := len(result.Areas)
		missing := t.held.Split(t.sent, m.Start, m.End, func(r kernel.PageRange) {
			result.Areas = appendArea(result.Areas, first, r)
		})
		for _, r := range missing {
			if err := t.neverSent(r); err != nil {
				return err
			}
		}
		return nil
	})
	return result, err
}

// appendArea extends the last area if the new one continues it, unless that belongs to an earlier mapping.
func appendArea(areas []Area, first int, r kernel.PageRange) []Area {
	size := uint64(PageSize())
	pages := (r.End - r.Start) / size
	if last := len(areas) - 1; last >= first && areas[last].Start+areas[last].Pages*size == r.Start {
		areas[last].Pages += pages
		return areas
	}
	return append(areas, Area{Start: r.Start, Pages: pages})
}

// neverSent is a last check that nothing was forgotten. Unreadable pages have no content: they are guards
// (MADV_GUARD_INSTALL), which Linux 6.13 and 6.14 do not distinguish from swapped pages.
func (t *task) neverSent(r kernel.PageRange) error {
	page := make([]byte, PageSize())
	for at := r.Start; at < r.End; at += uint64(len(page)) {
		there, err := t.reader.ReadForced(at, page)
		if err != nil {
			return err
		}
		if there {
			return fmt.Errorf("the page at %#x was never sent", at)
		}
	}
	return nil
}

// Again sends pages once more, because the target has lost them. Call it between two rounds. It skips pages
// that are gone. While pages are being left, these pages become remote.
func (s *Source) Again(ctx context.Context, sink Sink, lost []TaskMap) (RoundStats, error) {
	remote := uint64(0)
	stats, err := s.send(ctx, sink, lost, false,
		func(t *task, a Area, found func(kernel.PageRange) error) error {
			if !s.Leaving() {
				return wholeArea(t, a, found)
			}
			t.remote.Add(a.Start, a.pageRange().End)
			remote += a.Pages
			return nil
		})
	stats.RemotePages += remote
	return stats, err
}

// send sends those of the requested pages that choose selects.
func (s *Source) send(ctx context.Context, sink Sink, wanted []TaskMap, all bool,
	choose func(*task, Area, func(kernel.PageRange) error) error,
) (RoundStats, error) {
	stats := RoundStats{Number: s.rounds, Final: all}
	r := newReader(sink, &stats)
	byID := s.tasks.byID()
	for _, m := range wanted {
		if m.Task.IsObject() {
			if err := s.shared.sendAgain(ctx, r, m); err != nil {
				return stats, err
			}
			continue
		}
		t := byID[m.Task]
		if t == nil && !all {
			continue
		}
		if t == nil {
			return stats, fmt.Errorf("complete the memory: there is no process %d", m.Task)
		}
		r.begin(t, func(uint64, []byte) bool { return true })
		for _, a := range m.Areas {
			err := choose(t, a,
				func(one kernel.PageRange) error { return r.add(ctx, []kernel.PageRange{one}) })
			if err == nil {
				err = r.flush(ctx)
			}
			if !all && errors.Is(err, fs.ErrNotExist) {
				r.drop()
				break
			}
			if err != nil {
				return stats, t.describe(err)
			}
		}
	}
	stats.SentBytes = stats.contentBytes()
	return stats, nil
}
