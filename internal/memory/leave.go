package memory

import (
	"context"
	"errors"

	"github.com/godwit/godwit/internal/kernel"
)

// Leave has the private pages of the processes stay where they are: those that are found from now
// on are not read and not sent but noted as remote, and with them those that were sent and have been
// written since. A round that is under way goes on so. Memory that processes share is sent as
// before. It is for any goroutine, and there is no way back.
//
// Before the first round it is post-copy: rounds only find out which pages are written. After
// rounds it is a hybrid: the pages that were written after the last of them are remote.
func (s *Source) Leave() { s.leaving.Store(true) }

// Leaving reports whether pages stay.
func (s *Source) Leaving() bool { return s.leaving.Load() }

// leave notes pages as remote. It returns those that have to be looked at: of which only their content
// reports whether they have been written since they were sent, because their tracker cannot tell. To leave
// all those would be to send them twice, which on a slow link takes far longer than to look at them. What
// was not sent need not be looked at.
func (t *task) leave(one kernel.PageRange, stats *RoundStats) (unsure []kernel.PageRange) {
	if t.scanned && t.tracker.recent() {
		t.hot.add(one.Start, one.End)
	}
	if one.Categories&kernel.PageSwapped != 0 && !t.pagemap.TellsGuards() {
		return []kernel.PageRange{one} // what cannot be read is a guard, and nothing is there
	}
	if !t.tracker.compares() {
		t.stay(one, stats)
		return nil
	}
	never := pageSet{} // sent must not change while it is gone through
	_ = t.sent.in(one.Start, one.End, false, func(r kernel.PageRange) error {
		never.add(r.Start, r.End)
		stats.RemotePages += countPages([]kernel.PageRange{r})
		return nil
	})
	unsure = t.sent.split(t.remote, one.Start, one.End, func(kernel.PageRange) {})
	t.sent.merge(never)
	t.remote.merge(never)
	return unsure
}

// stay notes that pages are remote, whatever was sent of them.
func (t *task) stay(one kernel.PageRange, stats *RoundStats) {
	stats.RemotePages += countPages([]kernel.PageRange{one})
	t.remote.add(one.Start, one.End)
	t.sent.add(one.Start, one.End)
}

// changedRemote notes that pages are remote which were sent, were looked at, and are not what was sent.
func (t *task) changedRemote(one kernel.PageRange, stats *RoundStats) {
	t.stay(one, stats)
	if t.scanned {
		t.hot.add(one.Start, one.End)
	}
}

// Remote lists the remote pages, and of these the ones that are used first most probably:
// those that were written not long ago (found by a scan that was not the first of their process),
// and those in memory with programs. It is for when a final round has been, as Map, which lists
// them too.
func (s *Source) Remote() (remote, hot []TaskMap, err error) {
	for _, t := range s.inOrder() {
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
		t.held.split(t.remote, m.Start, m.End, func(r kernel.PageRange) {
			remote.Areas = appendArea(remote.Areas, first, r)
			if m.Executable {
				hot.Areas = appendArea(hot.Areas, firstHot, r)
				return
			}
			_ = t.hot.in(r.Start, r.End, true, func(r kernel.PageRange) error {
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

// SendRemote sends those of the requested pages that are remote, and they are remote no more: what is
// touched so soon that it cannot come after. At most so many are sent, the first ones. The
// processes are frozen, and a final round has been.
func (s *Source) SendRemote(ctx context.Context, sink Sink, wanted []RemoteFault, most int) (RoundStats,
	error) {
	byID, size := s.byID(), uint64(PageSize())
	chosen := map[Task]*TaskMap{}
	for _, w := range wanted {
		if most <= 0 {
			break
		}
		t, page := byID[w.Task], w.Address&^(size-1)
		if t == nil || !t.held.has(page) || !t.remote.has(page) {
			continue
		}
		t.remote.remove(page, page+size)
		if chosen[w.Task] == nil {
			chosen[w.Task] = &TaskMap{Task: w.Task}
		}
		chosen[w.Task].Areas = append(chosen[w.Task].Areas, Area{Start: page, Pages: 1})
		most--
	}
	maps := make([]TaskMap, 0, len(chosen))
	for _, t := range s.inOrder() {
		if m := chosen[t.id]; m != nil {
			maps = append(maps, *m)
		}
	}
	return s.send(ctx, sink, maps, true, wholeArea)
}

// wholeArea is all pages of an area, for Source.send.
func wholeArea(_ *task, a Area, found func(kernel.PageRange) error) error {
	return found(a.pageRange())
}

func (a Area) pageRange() kernel.PageRange {
	return kernel.PageRange{Start: a.Start, End: a.Start + a.Pages*uint64(PageSize())}
}
