package postcopy

import (
	"fmt"

	"github.com/godwit/godwit/internal/memory"
)

// piece is a sequence of pages of one area.
type piece struct {
	task    memory.Task
	address uint64
	pages   int
}

// queue decides which pages leave next. Each page is given out once until the next reset. It has no clock
// and no input or output, and is for one goroutine.
type queue struct {
	layout  *layout
	left    set   // not given out
	count   int   // of left
	soon    []int // before all others
	hot     set   // nil: none, or too many to be meaningful
	windows windows
	soonAt  int // no page of soon before it is left
	hotAt   int // no hot page before it is left
	restAt  int // no page before it is left
}

// newQueue makes a queue with all pages of maps. It ignores hot and soon pages that are not in maps.
func newQueue(maps, hot []memory.TaskMap, soon []memory.RemoteFault) (*queue, error) {
	l, err := newLayout(maps)
	if err != nil {
		return nil, err
	}
	q := &queue{layout: l, windows: windows{likely: map[int]int{}}}
	q.left = newSet(l.pages)
	q.left.add(0, l.pages)
	q.count = l.pages
	q.hot = hotOf(l, hot)
	for _, w := range soon {
		if n, ok := l.number(w.Task, w.Address); ok {
			q.soon = append(q.soon, n)
		}
	}
	return q, nil
}

// hotOf returns the set of hot pages. If they are most of all pages, the surroundings of requested pages
// are the better hint.
func hotOf(l *layout, hot []memory.TaskMap) set {
	s := newSet(l.pages)
	for _, m := range hot {
		for _, a := range m.Areas {
			l.overlap(m.Task, a, s.add)
		}
	}
	if n := s.count(0, l.pages); n == 0 || n > l.pages/2 {
		return nil
	}
	return s
}

// reset makes exactly the pages of maps remain. All must be among the pages of newQueue.
func (q *queue) reset(maps []memory.TaskMap) error {
	left, err := q.layout.choose(maps)
	if err != nil {
		return err
	}
	q.left, q.count = left, left.count(0, q.layout.pages)
	q.soonAt, q.hotAt, q.restAt = 0, 0, 0
	return nil
}

// strangerError is the error for a page that did not stay at the source.
type strangerError struct{ memory.RemoteFault }

func (e strangerError) Error() string {
	return fmt.Sprintf("the page at %#x of task %d did not stay at the source", e.Address, e.Task)
}

// fault takes out a page for which a process waits, and moves those around it to the front. It returns
// false if the page has been given out: then it is under way.
func (q *queue) fault(w memory.RemoteFault) (bool, error) {
	n, ok := q.layout.number(w.Task, w.Address)
	if !ok {
		return false, strangerError{w}
	}
	t := q.layout.task(n)
	q.windows.fault(n, t.from, t.to)
	if !q.left.has(n) {
		return false, nil
	}
	q.left.remove(n, n+1)
	q.count--
	return true, nil
}

// take gives out the next pages to leave, at most this many, and none only if none remains.
func (q *queue) take(most int) []piece {
	var pieces []piece
	for most > 0 && q.count > 0 {
		from, to := q.first()
		task, address, end := q.layout.place(from)
		to = q.left.gap(from, min(to, end, from+most, from+memory.MaxRunPages))
		q.left.remove(from, to)
		q.count -= to - from
		most -= to - from
		pieces = append(pieces, piece{task: task, address: address, pages: to - from})
	}
	return pieces
}

// first returns the next page to leave, and the end of the pages that may go with it.
func (q *queue) first() (from, to int) {
	for ; q.soonAt < len(q.soon); q.soonAt++ {
		if n := q.soon[q.soonAt]; q.left.has(n) {
			return n, n + 1
		}
	}
	if n, until, ok := q.windows.near(q.left); ok {
		return n, until
	}
	if q.hot != nil {
		for n := q.hotAt; n < q.layout.pages; {
			n = q.hot.next(n, q.layout.pages)
			end := q.hot.gap(n, q.layout.pages)
			if left := q.left.next(n, end); left < end {
				q.hotAt = left
				return left, end
			}
			n, q.hotAt = end, end
		}
	}
	if n, until, ok := q.windows.around(q.left, q.layout.pages); ok {
		return n, until
	}
	q.restAt = q.left.next(q.restAt, q.layout.pages)
	return q.restAt, q.layout.pages
}
