package memory

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// A round takes as long as the link needs, and a page that is written after it was sent has to be sent
// again. So pages that will be written in the rest of the round should leave last. Nobody knows which these
// are, but most programs write one address after the other: they allocate from a heap, collect garbage and
// start again at the heap's beginning, or go through their data in a circle. So a round checks now and then
// which of the remaining pages are being written. It assumes that writing continues upwards from there, at
// the pace at which the mapping is written, and starts again at its beginning. Pages that are written again
// and again, by contrast, are lost whenever they leave, and need not wait. If all this is wrong, pages only
// leave in another order: each leaves once in a round, with its content at that time. Only a page that has
// to be read to know whether it was written, or was swapped out, may leave again.

// ordering configures the order of a round.
type ordering struct {
	few  uint64        // this many pages are sent as they are found
	size uint64        // of a part: huge pages are not divided
	look time.Duration // the least pause between two looks
	// the factor, of the duration of a look and of its cost for the container, by which the next look is
	// postponed
	pause time.Duration
}

func usualOrdering() ordering {
	return ordering{few: chunkPages, size: uint64(chunkPages * PageSize()), look: 100 * time.Millisecond,
		pause: 50}
}

const (
	// busyFor is how long written pages count as still being written: programs work in bursts. A page that
	// is rewritten within that time does not show where writing continues.
	busyFor = 2 * time.Second
	// paceOver is the time over which the pace of a mapping is measured.
	paceOver = 3 * time.Second
	// lookFault is the cost of writing a page after a look.
	lookFault = time.Microsecond
)

// waiting is what a round still has to send of a process.
type waiting struct {
	ordering
	areas  []area
	parts  []part         // by address
	queue  []int          // of parts: the remaining ones, the next one first
	found  pageset.Set    // pages to be sent
	count  uint64         // how many there were at first
	anew   pageset.Set    // pages that were written since the round began, before they were sent…
	early  uint64         // …of which this many were not to be sent at first
	again  pageset.Set    // pages that were written after they were sent
	lately [2]pageset.Set // pages written in this busyFor and in the previous one
	pages  []float64      // written in each area, and not lately; older ones count less
	began  time.Time      // the round
	turned time.Time      // lately
	looks  [2]time.Time   // the last look, and the next
}

// part is the unit in which a mapping is sent.
type part struct {
	area       int // of waiting.areas
	start, end uint64
	sent       bool
	// when pages of it were last found written that had not been written lately; zero: not since the round
	// began
	busy  time.Time
	front uint64  // where these pages end: there writing continues
	loss  float64 // pages of it that will be written in the rest of the round
}

func newWaiting(o ordering, areas []area, now time.Time) *waiting {
	return &waiting{
		ordering: o, areas: areas, found: pageset.Set{}, anew: pageset.Set{}, again: pageset.Set{},
		lately: [2]pageset.Set{{}, {}}, pages: make([]float64, len(areas)),
		began: now, turned: now, looks: [2]time.Time{now, now.Add(o.look)},
	}
}

// add adds pages to be sent.
func (w *waiting) add(one kernel.PageRange) {
	w.found.Add(one.Start, one.End)
	w.count += countPages([]kernel.PageRange{one})
}

// cut divides the found pages into parts.
func (w *waiting) cut() {
	for i, m := range w.areas {
		_ = w.found.In(m.Start, m.End, true, func(one kernel.PageRange) error {
			for at := one.Start; at < one.End; {
				p := part{area: i, start: max(m.Start, at/w.size*w.size),
					end: min(m.End, (at/w.size+1)*w.size)}
				if last := len(w.parts) - 1; last < 0 || w.parts[last].start != p.start {
					w.queue = append(w.queue, len(w.parts))
					w.parts = append(w.parts, p)
				}
				at = p.end
			}
			return nil
		})
	}
	w.order()
}

// wrote records pages that were written since the last look, and have to be sent in any case: no later
// round finds them.
func (w *waiting) wrote(one kernel.PageRange, now time.Time) {
	w.eachPart(one, func(p *part, r kernel.PageRange) {
		_ = w.lately[0].In(r.Start, r.End, false, func(r kernel.PageRange) error {
			return w.lately[1].In(r.Start, r.End, false,
				func(r kernel.PageRange) error { return w.goesOn(p, r, now) })
		})
		w.lately[0].Add(r.Start, r.End)
	})
	_ = w.found.In(one.Start, one.End, false, func(r kernel.PageRange) error {
		w.early += countPages([]kernel.PageRange{r})
		return nil
	})
	w.found.Add(one.Start, one.End)
	w.anew.Add(one.Start, one.End)
}

// wroteAgain records pages that were written since they were sent: the next round finds them.
func (w *waiting) wroteAgain(one kernel.PageRange, now time.Time) {
	w.eachPart(one, func(p *part, r kernel.PageRange) {
		_ = w.again.In(r.Start, r.End, false, func(r kernel.PageRange) error { return w.goesOn(p, r, now) })
		w.again.Add(r.Start, r.End)
	})
}

// goesOn records how far writing has come.
func (w *waiting) goesOn(p *part, r kernel.PageRange, now time.Time) error {
	w.pages[p.area] += float64(countPages([]kernel.PageRange{r}))
	p.busy, p.front = now, r.End
	return nil
}

// eachPart calls do for each part that has some of these pages.
func (w *waiting) eachPart(one kernel.PageRange, do func(*part, kernel.PageRange)) {
	i := sort.Search(len(w.parts), func(i int) bool { return w.parts[i].end > one.Start })
	for ; i < len(w.parts) && w.parts[i].start < one.End; i++ {
		p := &w.parts[i]
		do(p, kernel.PageRange{Start: max(one.Start, p.start), End: min(one.End, p.end)})
	}
}

// each calls do for what was sent of each mapping, or for the rest, in the longest possible ranges.
func (w *waiting) each(sent bool, do func(area) error) error {
	for i := 0; i < len(w.parts); i++ {
		first := w.parts[i]
		if first.sent != sent {
			continue
		}
		m := w.areas[first.area]
		m.Start, m.End = first.start, first.end
		for i+1 < len(w.parts) && w.parts[i+1].sent == sent && w.parts[i+1].area == first.area &&
			w.parts[i+1].start == m.End {
			i++
			m.End = w.parts[i].end
		}
		if err := do(m); err != nil {
			return err
		}
	}
	return nil
}

// looked reorders the rest, after a look with this duration and result.
func (w *waiting) looked(now time.Time, took time.Duration, pages uint64) {
	rest := w.rest(now)
	for first := 0; first < len(w.parts); {
		area, end := w.parts[first].area, first+1
		for end < len(w.parts) && w.parts[end].area == area {
			end++
		}
		estimate(w.parts[first:end], w.pages[area]/(1-fade(now.Sub(w.began)))/paceOver.Seconds(), rest, now)
		first = end
	}
	w.order()
	w.age(now)
	w.looks = [2]time.Time{now, now.Add(max(w.look, w.pause*max(took, time.Duration(pages)*lookFault)))}
}

// order orders the rest. Among pages not known to be written, those of the largest mapping leave first,
// because a given part of it is least likely to be written; and from its end on, because programs begin at
// the start.
func (w *waiting) order() {
	w.queue = slices.DeleteFunc(w.queue, func(i int) bool { return w.parts[i].sent })
	size := func(i int) uint64 { return w.areas[w.parts[i].area].End - w.areas[w.parts[i].area].Start }
	slices.SortFunc(w.queue, func(a, b int) int {
		return cmp.Or(cmp.Compare(w.parts[a].loss, w.parts[b].loss), cmp.Compare(size(b), size(a)),
			cmp.Compare(b, a))
	})
}

// rest returns how many seconds the round will take from now on at its present speed.
func (w *waiting) rest(now time.Time) float64 {
	sent, left := 0.0, 0.0
	for _, p := range w.parts {
		if p.sent {
			sent++
		} else {
			left++
		}
	}
	return now.Sub(w.began).Seconds() * left / max(sent, 1)
}

// age reduces the weight of written pages by the time since the last look.
func (w *waiting) age(now time.Time) {
	for i := range w.pages {
		w.pages[i] *= fade(now.Sub(w.looks[0]))
	}
	if now.Sub(w.turned) >= busyFor {
		w.lately, w.turned = [2]pageset.Set{{}, w.lately[0]}, now
	}
}

// fade returns what remains of a weight after a time.
func fade(after time.Duration) float64 { return math.Exp(-after.Seconds() / paceOver.Seconds()) }

// estimate estimates how many pages of each part of a mapping will be written in this many seconds, if rate
// pages of the mapping are written per second.
func estimate(parts []part, rate, seconds float64, now time.Time) {
	// where writing continues: the nearest place below; below the first part it is the last
	front, busy := uint64(0), false
	for _, p := range parts {
		if p.isBusy(now) {
			front, busy = p.front, true
		}
	}
	around := parts[len(parts)-1].end - parts[0].start
	for i := range parts {
		p := &parts[i]
		from := p.start
		if p.isBusy(now) {
			front, around = p.front, 0
			from = p.front
		}
		p.loss = 0
		if busy {
			distance := float64(from+around-front) / float64(PageSize())
			p.loss = min(max(rate*seconds-distance, 0), float64(p.end-from)/float64(PageSize()))
		}
	}
}

func (p part) isBusy(now time.Time) bool { return !p.busy.IsZero() && now.Sub(p.busy) <= busyFor }

// take takes the next part.
func (w *waiting) take() *part {
	p := &w.parts[w.queue[0]]
	w.queue, p.sent = w.queue[1:], true
	return p
}
