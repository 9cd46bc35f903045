package postcopy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/memory"
)

// maxPages bounds the pages of all maps together: 1 TiB of 4 KiB pages, for which a set takes 32 MiB.
const maxPages = 1 << 28

// layout numbers the pages of maps: in order of task and address, without gaps. So a set of them is an
// array of bits, whatever their addresses are, and the next number is the next existing page.
type layout struct {
	tasks []taskSpans
	spans []span
	pages int
}

// taskSpans are the pages of one task.
type taskSpans struct {
	task        memory.Task
	first, last int // index of its first span, and of the one after its last
	from, to    int // numbers of its pages
}

// span is an area, and the number of its first page. It ends where the next one begins.
type span struct {
	start uint64
	first int
}

// newLayout numbers the pages of maps whose areas are in order, as package memory has them.
func newLayout(maps []memory.TaskMap) (*layout, error) {
	maps = slices.SortedFunc(slices.Values(maps),
		func(a, b memory.TaskMap) int { return cmp.Compare(a.Task, b.Task) })
	l := &layout{}
	size := uint64(memory.PageSize())
	for i, m := range maps {
		if i > 0 && maps[i-1].Task == m.Task {
			return nil, fmt.Errorf("two maps of pages of task %d", m.Task)
		}
		t := taskSpans{task: m.Task, first: len(l.spans), from: l.pages}
		end := uint64(0)
		for _, a := range m.Areas {
			if a.Start < end || a.Start%size != 0 || a.Pages == 0 || a.Pages > (1<<63-a.Start)/size {
				return nil, fmt.Errorf("map of pages of task %d: %d pages at %#x, after %#x", m.Task, a.Pages,
					a.Start, end)
			}
			if a.Pages > uint64(maxPages-l.pages) {
				return nil, fmt.Errorf("maps of more than %d pages", maxPages)
			}
			l.spans = append(l.spans, span{start: a.Start, first: l.pages})
			l.pages += int(a.Pages)
			end = a.Start + a.Pages*size
		}
		t.last, t.to = len(l.spans), l.pages
		if t.from < t.to {
			l.tasks = append(l.tasks, t)
		}
	}
	return l, nil
}

// end returns the number after the last of a span.
func (l *layout) end(i int) int {
	if i+1 < len(l.spans) {
		return l.spans[i+1].first
	}
	return l.pages
}

// number returns the number of a page, and whether it exists.
func (l *layout) number(task memory.Task, address uint64) (int, bool) {
	i, found := slices.BinarySearchFunc(l.tasks, task,
		func(t taskSpans, task memory.Task) int { return cmp.Compare(t.task, task) })
	if !found {
		return 0, false
	}
	t := l.tasks[i]
	j, found := slices.BinarySearchFunc(l.spans[t.first:t.last], address,
		func(s span, a uint64) int { return cmp.Compare(s.start, a) })
	if !found {
		j--
	}
	if j < 0 {
		return 0, false
	}
	s, size := l.spans[t.first+j], uint64(memory.PageSize())
	n := (address - s.start) / size
	if address%size != 0 || n >= uint64(l.end(t.first+j)-s.first) {
		return 0, false
	}
	return s.first + int(n), true
}

// numbers returns the numbers of consecutive pages, and whether all of them exist. Then their numbers are
// consecutive, even across several spans; if one did not exist, they could not be.
func (l *layout) numbers(task memory.Task, address, pages uint64) (from, to int, ok bool) {
	size := uint64(memory.PageSize())
	if pages == 0 || pages > uint64(l.pages) || pages > (1<<63-address%(1<<63))/size {
		return 0, 0, false
	}
	from, ok = l.number(task, address)
	if !ok {
		return 0, 0, false
	}
	last, ok := l.number(task, address+(pages-1)*size)
	if !ok || uint64(last-from) != pages-1 {
		return 0, 0, false
	}
	return from, last + 1, true
}

// overlap visits the existing pages of an area, by number.
func (l *layout) overlap(task memory.Task, a memory.Area, visit func(from, to int)) {
	i, found := slices.BinarySearchFunc(l.tasks, task,
		func(t taskSpans, task memory.Task) int { return cmp.Compare(t.task, task) })
	if !found {
		return
	}
	t, size := l.tasks[i], uint64(memory.PageSize())
	spans := l.spans[t.first:t.last]
	j, found := slices.BinarySearchFunc(spans, a.Start,
		func(s span, a uint64) int { return cmp.Compare(s.start, a) })
	if !found && j > 0 {
		j--
	}
	for end := a.Start + a.Pages*size; j < len(spans) && spans[j].start < end; j++ {
		s, pages := spans[j], l.end(t.first+j)-spans[j].first
		from, to := 0, pages
		if a.Start > s.start {
			from = min(pages, int((a.Start-s.start)/size))
		}
		if most := (end - s.start) / size; most < uint64(pages) {
			to = int(most)
		}
		if from < to {
			visit(s.first+from, s.first+to)
		}
	}
}

// task returns the task of a page.
func (l *layout) task(n int) taskSpans {
	i, found := slices.BinarySearchFunc(l.tasks, n,
		func(t taskSpans, n int) int { return cmp.Compare(t.from, n) })
	if !found {
		i--
	}
	return l.tasks[i]
}

// place returns a page's address, and the number after the last page that follows it in its area.
func (l *layout) place(n int) (task memory.Task, address uint64, end int) {
	i, found := slices.BinarySearchFunc(l.spans, n,
		func(s span, n int) int { return cmp.Compare(s.first, n) })
	if !found {
		i--
	}
	s := l.spans[i]
	return l.task(n).task, s.start + uint64(n-s.first)*uint64(memory.PageSize()), l.end(i)
}

// choose returns the set of the pages of maps, which must all be in the layout.
func (l *layout) choose(maps []memory.TaskMap) (set, error) {
	s := newSet(l.pages)
	for _, m := range maps {
		for _, a := range m.Areas {
			from, to, ok := l.numbers(m.Task, a.Start, a.Pages)
			if !ok {
				return nil, fmt.Errorf("not all of %d pages at %#x of task %d stayed at the source", a.Pages,
					a.Start, m.Task)
			}
			s.add(from, to)
		}
	}
	return s, nil
}

// maps lists the pages of a set. It joins areas of one mapping that are fewer than apart pages apart,
// including the pages in between.
func (l *layout) maps(s set, apart int) ([]memory.TaskMap, int) {
	var maps []memory.TaskMap
	areas, size := 0, uint64(memory.PageSize())
	for _, t := range l.tasks {
		m := memory.TaskMap{Task: t.task}
		for i := t.first; i < t.last; i++ {
			first, end := l.spans[i].first, l.end(i)
			for n := s.next(first, end); n < end; {
				to := s.gap(n, end)
				next := s.next(to, end)
				for next < end && next-to < apart {
					to = s.gap(next, end)
					next = s.next(to, end)
				}
				start := l.spans[i].start + uint64(n-first)*size
				m.Areas = append(m.Areas, memory.Area{Start: start, Pages: uint64(to - n)})
				n = next
			}
		}
		if len(m.Areas) > 0 {
			maps = append(maps, m)
			areas += len(m.Areas)
		}
	}
	return maps, areas
}

// mapsWithin is maps with at most this many areas, the peer's limit: it closes gaps until the result fits.
func (l *layout) mapsWithin(s set, most int) []memory.TaskMap {
	maps, areas := l.maps(s, 1)
	for apart := 2; areas > most && apart < 2*l.pages; apart *= 2 {
		maps, areas = l.maps(s, apart)
	}
	return maps
}
