package postcopy

import "slices"

// Pages around a requested page leave before others: they are its window, whose size depends on the
// program's access pattern.
const (
	firstWindow = 8 // pages, for a task of which nothing is known
	leastWindow = 4
	mostWindow  = 256
	// behindShare of a window lies behind the requested page, seen in the direction in which the
	// program goes.
	behindShare = 8
	// maxWindows is the number of remembered places at which programs request pages concurrently.
	maxWindows = 32
	// aroundPages is how far on either side of a window pages are still more likely needed than others.
	aroundPages = 2048
)

// window is a place where a program requests pages one after the other, or once did.
type window struct {
	from, to int  // pages that were moved to the front for it
	size     int  // how many of them are ahead of the requested page
	at       int  // that page
	down     bool // it goes to lower addresses
}

// windows are the latest places at which pages were requested, the latest first.
type windows struct {
	all    []window
	likely map[int]int // how many pages to begin with, by the first page of a task
}

// fault moves the pages around a page to the front. It belongs to a task that has the pages [from, to).
func (w *windows) fault(n, from, to int) {
	i := slices.IndexFunc(w.all, func(one window) bool {
		return one.at >= from && one.at < to && n >= one.from-one.size && n < one.to+one.size
	})
	var one window
	switch {
	case i >= 0:
		one = w.all[i]
		if n != one.at { // else it only asks again
			one.size, one.down = min(mostWindow, 2*one.size), n < one.at
		}
		w.all = slices.Delete(w.all, i, i+1)
	default:
		size, known := w.likely[from]
		if !known {
			size = 2 * firstWindow
		}
		one = window{size: max(leastWindow, size/2)}
	}
	one.at = n
	ahead, behind := one.size, max(1, one.size/behindShare)
	if one.down {
		ahead, behind = behind, ahead
	}
	one.from, one.to = max(from, n-behind), min(to, n+1+ahead)
	w.likely[from] = one.size
	if len(w.all) == maxWindows {
		w.all = w.all[:maxWindows-1]
	}
	w.all = slices.Insert(w.all, 0, one)
}

// near returns the first page to send in a window, in the program's direction, and the end of the window's
// pages after it.
func (w *windows) near(left set) (n, until int, ok bool) {
	for _, one := range w.all {
		if n, until, ok := one.nearest(left, one.from, one.to); ok {
			return n, until, true
		}
	}
	return 0, 0, false
}

// around returns the first page to send in the wider surroundings of windows.
func (w *windows) around(left set, pages int) (n, until int, ok bool) {
	for _, one := range w.all {
		if n, until, ok := one.nearest(left, max(0, one.from-aroundPages),
			min(pages, one.to+aroundPages)); ok {
			return n, until, true
		}
	}
	return 0, 0, false
}

// nearest returns the first remaining page of [from, to): pages ahead come before pages behind.
func (one window) nearest(left set, from, to int) (n, until int, ok bool) {
	up := left.next(one.at, to)
	if !one.down && up < to {
		return up, to, true
	}
	if last := left.last(from, one.at); last >= from {
		// A few together, because the pages of a run ascend.
		begin := from
		if one.down {
			begin = max(from, last+1-leastWindow)
		}
		return left.next(begin, last), last + 1, true
	}
	return up, to, up < to
}
