package postcopy

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

// TestSet compares sets with a list of their expected contents.
func TestSet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		pages := 1 + random.IntN(300)
		s, want := newSet(pages), make([]bool, pages)
		for range 20 {
			from := random.IntN(pages)
			to := from + random.IntN(pages-from+1)
			value := random.IntN(2) == 0
			if value {
				s.add(from, to)
			} else {
				s.remove(from, to)
			}
			for i := from; i < to; i++ {
				want[i] = value
			}
			from = random.IntN(pages)
			to = from + random.IntN(pages-from+1)
			next, gap, last, count := to, to, from-1, 0
			for i := to - 1; i >= from; i-- {
				if want[i] {
					next = i
					count++
					last = max(last, i)
				} else {
					gap = i
				}
				if s.has(i) != want[i] {
					t.Fatalf("page %d", i)
				}
			}
			if s.next(from, to) != next || s.gap(from, to) != gap || max(s.last(from, to), from-1) != last ||
				s.count(from, to) != count {
				t.Fatalf("in [%d, %d): next %d, gap %d, last %d, count %d; want %d, %d, %d, %d", from, to,
					s.next(from, to), s.gap(from, to), s.last(from, to), s.count(from, to), next, gap, last,
					count)
			}
		}
	}
}

// TestLayout: pages are numbered in order, and sets of them match the maps.
func TestLayout(t *testing.T) {
	size := uint64(memory.PageSize())
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 3))
		maps := randomMaps(random, 500)
		l, err := newLayout(maps)
		must(t, err)
		all := spots(maps)
		if l.pages != len(all) {
			t.Fatalf("%d pages, want %d", l.pages, len(all))
		}
		for i, s := range all {
			n, ok := l.number(s.task, s.address)
			task, address, end := l.place(i)
			if !ok || n != i || task != s.task || address != s.address || end <= i || end > len(all) ||
				l.task(i).task != task {
				t.Fatalf("page %d is %d; it is at %#x of %d", i, n, address, task)
			}
			_, before := l.number(s.task, s.address-size)
			if has := i > 0 && all[i-1] == (spot{s.task, s.address - size}); before != has {
				t.Fatalf("there is a page at %#x: %t", s.address-size, before)
			}
			if _, ok := l.number(s.task, s.address+1); ok {
				t.Fatal("half a page")
			}
			pages := 1 + random.IntN(20)
			whole := i+pages <= len(all) && all[i+pages-1] == spot{s.task, s.address + uint64(pages-1)*size}
			if from, to, ok := l.numbers(s.task, s.address, uint64(pages)); ok != whole || ok &&
				(from != i || to != i+pages) {
				t.Fatalf("%d pages from %d: %d, %d, %t", pages, i, from, to, ok)
			}
		}
		some := newSet(l.pages)
		for i := range all {
			if random.IntN(3) > 0 {
				some.add(i, i+1)
			}
		}
		listed, areas := l.maps(some, 1)
		again, err := l.choose(listed)
		must(t, err)
		if !slices.Equal(again, some) {
			t.Fatal("the map of a set is another set")
		}
		coarse := l.mapsWithin(some, areas/2+len(l.spans))
		wider, err := l.choose(coarse)
		must(t, err)
		if n := wider.count(0, l.pages); n < some.count(0, l.pages) {
			t.Fatalf("a coarse map has %d pages of %d", n, some.count(0, l.pages))
		}
		wider.intersect(some)
		if !slices.Equal(wider, some) {
			t.Fatal("a coarse map leaves pages out")
		}
		wild := newSet(l.pages)
		for _, m := range maps {
			l.overlap(m.Task, memory.Area{Start: 0, Pages: 1 << 40}, wild.add)
			l.overlap(m.Task+7, memory.Area{Start: size, Pages: 3}, func(int, int) {})
		}
		if wild.count(0, l.pages) != l.pages {
			t.Fatal("an area over all does not overlap all")
		}
	}
}

// TestLayoutRefused: invalid maps are refused.
func TestLayoutRefused(t *testing.T) {
	size := uint64(memory.PageSize())
	for _, maps := range [][]memory.TaskMap{
		{{Task: 1}, {Task: 1}},
		{{Task: 1, Areas: []memory.Area{{Start: 1, Pages: 1}}}},
		{{Task: 1, Areas: []memory.Area{{Start: size, Pages: 0}}}},
		{{Task: 1, Areas: []memory.Area{{Start: size, Pages: 2}, {Start: 2 * size, Pages: 1}}}},
		{{Task: 1, Areas: []memory.Area{{Start: size, Pages: 1 << 60}}}},
		{{Task: 1, Areas: []memory.Area{{Start: size, Pages: maxPages}, {Start: 1 << 50, Pages: 1}}}},
	} {
		if _, err := newLayout(maps); err == nil {
			t.Errorf("%v was taken", maps)
		}
	}
}

// TestQueue applies a server's operations to queues, at random: each page is issued once until the next
// reset, and none is lost.
func TestQueue(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 4))
		maps := randomMaps(random, 3000)
		all := spots(maps)
		q, err := newQueue(maps, maps[:random.IntN(2)],
			[]memory.RemoteFault{{Task: all[9].task, Address: all[9].address}})
		must(t, err)
		left := map[spot]bool{}
		for _, s := range all {
			left[s] = true
		}
		for range 3 {
			for len(left) > 0 {
				if random.IntN(3) == 0 {
					s := all[random.IntN(len(all))]
					ours, err := q.fault(memory.RemoteFault{Task: s.task, Address: s.address})
					must(t, err)
					if ours != left[s] {
						t.Fatalf("wanted page %+v: %t, want %t", s, ours, left[s])
					}
					delete(left, s)
				}
				takeSome(t, q, left, 1+random.IntN(100))
			}
			if len(q.take(10)) > 0 || q.count != 0 {
				t.Fatalf("%d pages are left after the last", q.count)
			}
			chosen := newSet(q.layout.pages)
			for range 10 {
				from := random.IntN(len(all))
				chosen.add(from, min(len(all), from+random.IntN(200)))
			}
			again, _ := q.layout.maps(chosen, 1)
			must(t, q.reset(again))
			for _, s := range spots(again) {
				left[s] = true
			}
		}
	}
}

func takeSome(t *testing.T, q *queue, left map[spot]bool, most int) {
	t.Helper()
	pages := 0
	for _, p := range q.take(most) {
		for i := range p.pages {
			s := spot{p.task, p.address + uint64(i*memory.PageSize())}
			if !left[s] {
				t.Fatalf("page %+v was given out twice, or never existed", s)
			}
			delete(left, s)
		}
		pages += p.pages
	}
	if pages > most || pages < most && len(left) > 0 || q.count != len(left) {
		t.Fatalf("%d pages were given out, wanted %d, left %d, counted %d", pages, most, len(left), q.count)
	}
}

// flat is one area, in which the number of a page is the number of its address.
func flat(pages int) []memory.TaskMap {
	return []memory.TaskMap{{Task: 1, Areas: []memory.Area{{Start: 0, Pages: uint64(pages)}}}}
}

func at(page int) memory.RemoteFault {
	return memory.RemoteFault{Task: 1, Address: uint64(page * memory.PageSize())}
}

// order returns the numbers of the pages that are sent next.
func order(q *queue, pages int) []int {
	var out []int
	for _, p := range q.take(pages) {
		for i := range p.pages {
			out = append(out, int(p.address)/memory.PageSize()+i)
		}
	}
	return out
}

// TestOrder: the order is that of the package comment.
func TestOrder(t *testing.T) {
	size := uint64(memory.PageSize())
	hot := []memory.TaskMap{{Task: 1,
		Areas: []memory.Area{{Start: 5000 * size, Pages: 3}, {Start: 9000 * size, Pages: 2}}}}
	q, err := newQueue(flat(20000), hot, []memory.RemoteFault{at(15000), at(20000), at(16000)})
	must(t, err)
	want := func(page int, ours bool) {
		t.Helper()
		if got, err := q.fault(at(page)); err != nil || got != ours {
			t.Fatalf("page %d: %t, %v", page, got, err)
		}
	}
	expect := func(pages ...int) {
		t.Helper()
		if got := order(q, len(pages)); !slices.Equal(got, pages) {
			t.Fatalf("%v left, want %v", got, pages)
		}
	}
	expect(15000, 16000, 5000)
	want(7000, true)
	want(7000, false)
	expect(7001, 7002, 7003, 7004)
	want(12000, true) // a jump: nothing near the earlier position, until this window is exhausted
	expect(12001, 12002, 12003, 12004, 11999, 7005, 7006, 7007, 7008, 6999)
	expect(5001, 5002, 9000, 9001) // hot ones
	expect(12005, 12006)           // farther around
	q.take(4*aroundPages - 5 - 2)  // without the hot ones, and the two before
	expect(0, 1, 2, 3)             // the rest
	if _, err := q.fault(at(20000)); !errors.As(err, &strangerError{}) {
		t.Errorf("a page that is not remote: %v", err)
	}
}

// TestWindows: few pages around a random jump, and many ahead of a sequential program.
func TestWindows(t *testing.T) {
	w := windows{likely: map[int]int{}}
	page := 1000
	for _, size := range []int{8, 16, 32, 64, 128, 256, 256, 256} {
		w.fault(page, 0, 1<<20)
		if one := w.all[0]; one.size != size || one.to != page+1+size || one.from != page-size/8 {
			t.Fatalf("at %d: %+v, want size %d", page, one, size)
		}
		page = w.all[0].to
	}
	for _, size := range []int{128, 64, 32, 16, 8, 4, 4, 4} {
		page += 10000
		w.fault(page, 0, 1<<20)
		if w.all[0].size != size {
			t.Fatalf("%+v, want size %d", w.all[0], size)
		}
	}
	for range 10 {
		page = w.all[0].from - 1
		w.fault(page, 0, 1<<20)
	}
	if one := w.all[0]; !one.down || one.size != 256 || one.from != page-256 || one.to != page+33 {
		t.Fatalf("downwards: %+v at %d", one, page)
	}
	left := newSet(1 << 20)
	left.add(0, 1<<20)
	if n, until, ok := w.near(left); !ok || n != page-leastWindow || until != page {
		t.Fatalf("downwards first come [%d, %d), %t; want before %d", n, until, ok, page)
	}
	for i := range 1000 {
		w.fault(i*1000, 0, 1<<20)
	}
	if len(w.all) > maxWindows {
		t.Errorf("%d windows", len(w.all))
	}
	w.fault(1<<19+5, 1<<19, 1<<19+7)
	if one := w.all[0]; one.from != 1<<19+4 || one.to != 1<<19+7 {
		t.Errorf("another task's pages: %+v", one)
	}
}
