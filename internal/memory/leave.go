package memory

import (
	"context"
	"errors"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// Leave makes the private pages of the processes stay where they are. Pages found from now on are not read
// and sent but recorded as remote, and so are sent pages that have been written since. A round in progress
// continues in this way. Memory that processes share is sent as before. Any goroutine may call Leave, and
// there is no way back.
//
// Before the first round this is post-copy: rounds only find out which pages are written. After rounds it
// is a hybrid: the pages that were written after the last round are remote.
func (s *Source) Leave() { s.leaving.Store(true) }

// Leaving reports whether pages stay.
func (s *Source) Leaving() bool { return s.leaving.Load() }

// leave records pages as remote. It returns pages that have to be examined, because their tracker cannot
// tell whether they were written since they were sent: only their content can. Leaving all of these would
// send them twice, which on a slow link takes far longer than examining them. Unsent pages need not be
// examined.
func (t *task) leave(one kernel.PageRange, stats *RoundStats) (unsure []kernel.PageRange) {
	if t.scanned && t.tracker.recent() {
		t.hot.Add(one.Start, one.End)
	}
	if one.Categories&kernel.PageSwapped != 0 && !t.pagemap.TellsGuards() {
		return []kernel.PageRange{one} // an unreadable page is a guard, without content
	}
	if !t.tracker.compares() {
		t.stay(one, stats)
		return nil
	}
	never := pageset.Set{} // sent must not change during the iteration
	_ = t.sent.In(one.Start, one.End, false, func(r kernel.PageRange) error {
		never.Add(r.Start, r.End)
		stats.RemotePages += countPages([]kernel.PageRange{r})
		return nil
	})
	unsure = t.sent.Split(t.remote, one.Start, one.End, func(kernel.PageRange) {})
	t.sent.Merge(never)
	t.remote.Merge(never)
	return unsure
}

// stay records that pages are remote, whatever was sent of them.
func (t *task) stay(one kernel.PageRange, stats *RoundStats) {
	stats.RemotePages += countPages([]kernel.PageRange{one})
	t.remote.Add(one.Start, one.End)
	t.sent.Add(one.Start, one.End)
}

// changedRemote records as remote pages that were sent, were examined, and have changed.
func (t *task) changedRemote(one kernel.PageRange, stats *RoundStats) {
	t.stay(one, stats)
	if t.scanned {
		t.hot.Add(one.Start, one.End)
	}
}

// Remote lists the remote pages, and among these the ones that are probably used first: recently written
// pages (found by a scan that was not the first of their process), and pages in memory with programs. Call
// it after a final round, like Map, which lists them, too.
func (s *Source) Remote() (remote, hot []TaskMap, err error) {
	for _, t := range s.tasks.inOrder() {
		all, first, err := t.remoteContents()
		if err != nil {
			return nil, nil, t.describe(err)
		}
		if len(all.Areas) > 0 {
			remote = append(remote, all)
		}
		if len(first.Areas) > 0 {
			hot = append(hot, first)
		}
	}
	return remote, hot, nil
}

func (t *task) remoteContents() (remote, hot TaskMap, err error) {
	remote.Task, hot.Task = t.id, t.id
	err = t.eachHeld(func(m area) error {
		first, firstHot := len(remote.Areas), len(hot.Areas)
		t.held.Split(t.remote, m.Start, m.End, func(r kernel.PageRange) {
			remote.Areas = appendArea(remote.Areas, first, r)
			if m.Executable {
				hot.Areas = appendArea(hot.Areas, firstHot, r)
				return
			}
			_ = t.hot.In(r.Start, r.End, true, func(r kernel.PageRange) error {
				hot.Areas = appendArea(hot.Areas, firstHot, r)
				return nil
			})
		})
		return nil
	})
	return remote, hot, err
}

// eachHeld calls do for each mapping whose pages Godwit carries, of a process that is frozen.
func (t *task) eachHeld(do func(m area) error) error {
	if t.held == nil {
		return errors.New("no final round has looked which pages it has")
	}
	areas, err := t.lazyAreas()
	if err != nil {
		return err
	}
	for _, m := range areas {
		if err := do(m); err != nil {
			return err
		}
	}
	return nil
}

// SendRemote sends those of the requested pages that are remote, which then are not remote any more: pages
// that are touched too soon to come later. It sends at most this many, the first ones. The processes are
// frozen, and a final round has been.
func (s *Source) SendRemote(ctx context.Context, sink Sink, wanted []RemoteFault, most int) (RoundStats,
	error) {
	byID, size := s.tasks.byID(), uint64(PageSize())
	chosen := map[Task]*TaskMap{}
	for _, w := range wanted {
		if most <= 0 {
			break
		}
		t, page := byID[w.Task], w.Address&^(size-1)
		if t == nil || !t.held.Has(page) || !t.remote.Has(page) {
			continue
		}
		t.remote.Remove(page, page+size)
		if chosen[w.Task] == nil {
			chosen[w.Task] = &TaskMap{Task: w.Task}
		}
		chosen[w.Task].Areas = append(chosen[w.Task].Areas, Area{Start: page, Pages: 1})
		most--
	}
	maps := make([]TaskMap, 0, len(chosen))
	for _, t := range s.tasks.inOrder() {
		if m := chosen[t.id]; m != nil {
			maps = append(maps, *m)
		}
	}
	return s.send(ctx, sink, maps, true, wholeArea)
}

// wholeArea returns all pages of an area, for Source.send.
func wholeArea(_ *task, a Area, found func(kernel.PageRange) error) error {
	return found(a.pageRange())
}

func (a Area) pageRange() kernel.PageRange {
	return kernel.PageRange{Start: a.Start, End: a.Start + a.Pages*uint64(PageSize())}
}
