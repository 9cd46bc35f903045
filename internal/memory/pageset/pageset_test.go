package pageset

import (
	"math/bits"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/godwit/godwit/internal/kernel"
)

// TestPageSet compares with the simplest possible implementation.
func TestPageSet(t *testing.T) {
	size := uint64(os.Getpagesize())
	const pages = 3 * ChunkPages
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		set, other, plain := Set{}, Set{}, [pages]bool{}
		base := random.Uint64N(1<<30) * ChunkPages * size
		for range random.IntN(20) {
			from := random.Uint64N(pages)
			to := from + random.Uint64N(min(pages-from, 1+random.Uint64N(pages)))
			into := []Set{set, other}[random.IntN(2)]
			into.Add(base+from*size, base+to*size)
			for i := from; i < to; i++ {
				plain[i] = true
			}
		}
		set.Merge(other)
		for range random.IntN(3) {
			from := random.Uint64N(pages)
			to := from + random.Uint64N(pages-from)
			set.Remove(base+from*size, base+to*size)
			clear(plain[from:to])
		}
		for i, want := range plain {
			if set.Has(base+uint64(i)*size) != want {
				t.Fatalf("page %d: %v", i, !want)
			}
		}
		from := random.Uint64N(pages)
		to := from + random.Uint64N(pages-from)
		for _, wanted := range []bool{true, false} {
			got, last := [pages]bool{}, uint64(0)
			must(t, set.In(base+from*size, base+to*size, wanted, func(r kernel.PageRange) error {
				if r.Start <= last && last > 0 || r.Start >= r.End {
					t.Fatalf("range %+v after %#x", r, last)
				}
				last = r.End
				for at := r.Start; at < r.End; at += size {
					got[(at-base)/size] = true
				}
				return nil
			}))
			for i := range plain {
				if got[i] != (plain[i] == wanted && uint64(i) >= from && uint64(i) < to) {
					t.Fatalf("%v from %d to %d: page %d", wanted, from, to, i)
				}
			}
		}
	}
}

// TestPageSetSplit splits a set by another, within mappings that are small and large compared with the
// sets.
func TestPageSetSplit(t *testing.T) {
	size := uint64(os.Getpagesize())
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		set, other := Set{}, Set{}
		base, span := random.Uint64N(1<<30)*size, 1+random.Uint64N(1<<(10+random.UintN(18)))
		for range random.IntN(30) {
			from := random.Uint64N(span)
			to := from + 1 + random.Uint64N(min(span-from, 700))
			[]Set{set, other}[random.IntN(2)].Add(base+from*size, base+to*size)
		}
		first, last := base+random.Uint64N(span)*size, base+span*size
		both := Set{}
		previous := uint64(0)
		alone := Set{}
		for _, r := range set.Split(other, first, last, func(r kernel.PageRange) {
			if r.Start < previous || r.Start >= r.End {
				t.Fatalf("range %+v after %#x", r, previous)
			}
			previous = r.End
			both.Add(r.Start, r.End)
		}) {
			alone.Add(r.Start, r.End)
		}
		must(t, set.In(base, last, true, func(r kernel.PageRange) error {
			for at := r.Start; at < r.End; at += size {
				is := at >= first
				if both.Has(at) != (is && other.Has(at)) || alone.Has(at) != (is && !other.Has(at)) {
					t.Fatalf("page %#x from %#x on: both %v, alone %v", at, first, both.Has(at),
						alone.Has(at))
				}
			}
			return nil
		}))
		if n, m := count(both)+count(alone), countIn(t, set, first, last); n != m {
			t.Fatalf("%d pages, of %d", n, m)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func count(s Set) int {
	n := 0
	for _, chunk := range s {
		for _, word := range chunk {
			n += bits.OnesCount64(word)
		}
	}
	return n
}

func countIn(t *testing.T, s Set, start, end uint64) int {
	n := 0
	must(t, s.In(start, end, true, func(r kernel.PageRange) error {
		n += int((r.End - r.Start) / uint64(os.Getpagesize()))
		return nil
	}))
	return n
}

// BenchmarkSplit uses 4 GiB of which every 16th page is missing, in a mapping of 1 TiB.
func BenchmarkSplit(b *testing.B) {
	size := uint64(os.Getpagesize())
	set := Set{}
	for at := uint64(0); at < 4<<30; at += 16 * size {
		set.Add(at, at+15*size)
	}
	for b.Loop() {
		areas := 0
		set.Split(set, 0, 1<<40, func(kernel.PageRange) { areas++ })
	}
}
