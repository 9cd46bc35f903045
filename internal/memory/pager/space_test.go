package pager

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

const testPage = 4096

// modelSpace is an address space as a map: for each address, the image offset of the page that is missing
// there.
type modelSpace map[uint64]uint64

func testImage() []memory.ImageSlot {
	var image []memory.ImageSlot
	for i := range uint64(6) {
		address := 0x10000000 + i*memory.SlotBytes
		if i >= 4 {
			address += 7 * memory.SlotBytes
		}
		one := memory.ImageSlot{Task: 1, Address: address, Offset: (5 - i) * memory.SlotBytes}
		for w := range one.Have {
			one.Have[w] = rand.Uint64() | rand.Uint64()
		}
		image = append(image, one)
	}
	return image
}

func modelOf(image []memory.ImageSlot) modelSpace {
	m := modelSpace{}
	for _, one := range image {
		for page := range uint64(512) {
			if one.Have[page/64]>>(page%64)&1 != 0 {
				m[one.Address+page*testPage] = one.Offset + page*testPage
			}
		}
	}
	return m
}

// agree compares a space with its model, and checks that its slots count the missing pages of all spaces.
func agree(t *testing.T, spaces []*space, models []modelSpace) {
	t.Helper()
	counts := map[*slot]int64{}
	for i, s := range spaces {
		if s.left.Load() != int64(len(models[i])) {
			t.Fatalf("space %d: %d are missing, want %d", i, s.left.Load(), len(models[i]))
		}
		seen := 0
		for at := uint64(0); ; {
			found, ok := s.next(at, 1<<20)
			if !ok {
				break
			}
			for n := range found.pages {
				address := found.address + uint64(n)*testPage
				if want, ok := models[i][address]; !ok || want != s.offset(found.page+n) {
					t.Fatalf("space %d: %#x has offset %#x, want %#x, %v", i, address, s.offset(found.page+n),
						want, ok)
				}
				seen++
			}
			at = found.address + uint64(found.pages)*testPage
		}
		if seen != len(models[i]) {
			t.Fatalf("space %d: found %d, want %d", i, seen, len(models[i]))
		}
		for _, one := range s.slots {
			counts[one] += 0
		}
		for _, offset := range models[i] {
			for _, one := range s.slots {
				if offset >= one.offset && offset < one.offset+memory.SlotBytes {
					counts[one]++
				}
			}
		}
	}
	for one, want := range counts {
		if one.left.Load() != want {
			t.Fatalf("slot at %#x: %d, want %d", one.offset, one.left.Load(), want)
		}
	}
}

// TestSpaceModel applies random operations of processes and workers to a space, and to a simple model of
// it.
func TestSpaceModel(t *testing.T) {
	for range 6 {
		image := testImage()
		m, _ := newFamily(1, image)
		s := newSpace(m, nil, image, testPage)
		released := map[*slot]int{}
		s.release = func(one *slot) { released[one]++ }
		spaces, models := []*space{s}, []modelSpace{modelOf(image)}
		agree(t, spaces, models)
		address := func() uint64 { return 0x10000000 + rand.Uint64N(16*512)*testPage }
		for step := range 400 {
			i := rand.IntN(len(spaces))
			s, m := spaces[i], models[i]
			from := address()
			length := (1 + rand.Uint64N(700)) * testPage
			switch rand.IntN(8) {
			case 0:
				s.remove(from, from+length)
				m.drop(from, from+length)
			case 1:
				s.unmap(from, from+length)
				m.drop(from, from+length)
			case 2, 3:
				to := address()
				if to < from+length && from < to+length {
					continue // the kernel refuses it
				}
				s.remap(from, to, length)
				m.remap(from, to, length)
			case 4:
				if len(spaces) < 5 {
					child := modelSpace{}
					for a, o := range m {
						child[a] = o
					}
					spaces, models = append(spaces, s.fork(nil)), append(models, child)
				}
			default:
				if found, ok := s.claim(1 + rand.IntN(300)); ok {
					s.done(found.page, found.pages)
					m.drop(found.address, found.address+uint64(found.pages)*testPage)
				}
			}
			page, missing := s.find(from)
			if offset, ok := m[from]; ok != missing || missing && s.offset(page) != offset {
				t.Fatalf("find %#x: %v, want %v", from, missing, ok)
			}
			if step%20 == 0 {
				agree(t, spaces, models)
			}
		}
		for _, s := range spaces {
			s.giveUp()
		}
		for _, one := range s.slots {
			if one.left.Load() != 0 || released[one] != 1 {
				t.Fatalf("slot at %#x: %d left, released %d times", one.offset, one.left.Load(),
					released[one])
			}
		}
	}
}

func (m modelSpace) drop(from, to uint64) {
	for a := range m {
		if a >= from && a < to {
			delete(m, a)
		}
	}
}

func (m modelSpace) remap(from, to, length uint64) {
	moved := modelSpace{}
	for a, o := range m {
		if a >= from && a < from+length {
			moved[a-from+to] = o
		}
	}
	m.drop(from, from+length)
	m.drop(to, to+length)
	for a, o := range moved {
		m[a] = o
	}
}

func TestLatencies(t *testing.T) {
	var l latencies
	if l.quantile(0.5) != 0 {
		t.Error("a median of nothing")
	}
	for d := time.Duration(1); d < time.Minute; d += d/9 + 1 {
		if got := valueOf(bucketOf(d)); got < d || float64(got) > 1.07*float64(d) {
			t.Errorf("%d ns is counted as %d ns", d, got)
		}
	}
	for range 98 {
		l.add(10 * time.Microsecond)
	}
	l.add(time.Millisecond)
	l.add(time.Second)
	for share, want := range map[float64]time.Duration{0.5: 10 * time.Microsecond, 0.99: time.Millisecond,
		1: time.Second} {
		if got := l.quantile(share); got < want || float64(got) > 1.07*float64(want) {
			t.Errorf("quantile %v: %v, want %v", share, got, want)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"kind":"setup","setup":{"work_dir":"/x"}}`))
	f.Add([]byte(`{"kind":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := parseMessage(data, nil); err != nil && errors.Unwrap(err) == nil {
			t.Error(err)
		}
	})
}

// TestLater: pages that have come and could not be filled are retried before the background search for
// missing pages, and during it later.
func TestLater(t *testing.T) {
	f, one := newFiller(nil, nil, nil), arrival{page: 7, pages: 1}
	f.later(one)
	if again, is := f.came.take(); !is || again != one {
		t.Errorf("%+v, %t", again, is)
	}
	f.rested.Store(true)
	before := f.changes.Load()
	f.later(one)
	if again, is := f.came.take(); is || f.changes.Load() == before {
		t.Errorf("%+v; nothing is looked for", again)
	}
}
