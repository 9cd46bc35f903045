package memory

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func newTestStore(t testing.TB, limit int64) *Store {
	t.Helper()
	s, err := NewStore(limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func filledWith(pages int, b byte) []byte { return bytes.Repeat([]byte{b}, pages*PageSize()) }

// TestStoreModel puts, zeroes and keeps pages at random, in a store and in a map.
func TestStoreModel(t *testing.T) {
	size := uint64(PageSize())
	random := rand.New(rand.NewPCG(7, 11))
	s := newTestStore(t, 1<<30)
	type place struct {
		task    Task
		address uint64
	}
	model := map[place]byte{}
	// Around the border of two slots, far away, and at the end of the address space.
	bases := []uint64{slotBytes - 40*size, 5 * slotBytes, maxAddress - 400*size}
	for range 3000 {
		run := Run{
			Task: Task(1 + random.IntN(3)), Address: bases[random.IntN(3)] + uint64(random.IntN(100))*size,
			Pages: uint32(1 + random.IntN(100)), Zero: random.IntN(4) == 0,
		}
		content := byte(random.IntN(256))
		var data []byte
		if run.Zero {
			content = 0
		} else {
			data = filledWith(int(run.Pages), content)
		}
		if err := s.Put(run, data); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(run.Pages) {
			model[place{run.Task, run.Address + i*size}] = content
		}
	}
	var maps []TaskMap
	for task := Task(1); task <= 2; task++ { // the third task has ended
		m := TaskMap{Task: task}
		for p := range model {
			if p.task == task && random.IntN(3) > 0 {
				m.Areas = append(m.Areas, Area{Start: p.address, Pages: 1})
			}
		}
		slices.SortFunc(m.Areas, func(a, b Area) int { return int(a.Start>>12) - int(b.Start>>12) })
		maps = append(maps, m)
	}
	if err := s.Check(maps); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(maps); err != nil {
		t.Fatal(err)
	}
	kept := map[place]bool{}
	for _, m := range maps {
		for _, a := range m.Areas {
			kept[place{m.Task, a.Start}] = true
		}
	}
	page := make([]byte, size)
	for p, content := range model {
		has, err := s.ReadPage(p.task, p.address, page)
		if err != nil || has != kept[p] || has && !bytes.Equal(page, filledWith(1, content)) {
			t.Fatalf("%+v: %v, %v, begins with %d, want %v, %d", p, has, err, page[0], kept[p], content)
		}
	}
	image, err := s.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	found := readImage(t, image)
	for p, content := range model {
		data, has := found[p.task][p.address]
		// content may happen to be zero
		if want := kept[p] && content != 0; has != want && !(has && kept[p]) {
			t.Fatalf("image: %+v: %v, want %v", p, has, want)
		}
		if has && !bytes.Equal(data, filledWith(1, content)) {
			t.Fatalf("image: %+v has %d, want %d", p, data[0], content)
		}
		delete(found[p.task], p.address)
	}
	for task, pages := range found {
		if len(pages) > 0 {
			t.Errorf("image: %d more pages of task %d", len(pages), task)
		}
	}
}

// readImage reads an image as a pager does.
func readImage(t testing.TB, image *Image) map[Task]map[uint64][]byte {
	t.Helper()
	slots, err := image.ReadIndex()
	if err != nil {
		t.Fatal(err)
	}
	found := map[Task]map[uint64][]byte{}
	for _, one := range slots {
		if found[one.Task] == nil {
			found[one.Task] = map[uint64][]byte{}
		}
		have := mask(one.Have)
		for page := range slotBytes / PageSize() {
			if !have.has(page) {
				continue
			}
			data := make([]byte, PageSize())
			if _, err := image.Pages.ReadAt(data, int64(one.Offset)+int64(page*PageSize())); err != nil {
				t.Fatal(err)
			}
			found[one.Task][one.Address+uint64(page*PageSize())] = data
		}
	}
	return found
}

func TestStoreLimit(t *testing.T) {
	size := int64(PageSize())
	s := newTestStore(t, 100*size+slotCost)
	if err := s.Put(Run{Task: 1, Pages: 100}, filledWith(100, 1)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the same again takes nothing
		if err := s.Put(Run{Task: 1, Address: uint64(50 * size), Pages: 50}, filledWith(50, 2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(Run{Task: 1, Address: uint64(100 * size), Pages: 1}, filledWith(1, 3)); !errors.Is(err,
		ErrStoreFull) {
		t.Errorf("one page too many: %v", err)
	}
	if err := s.Put(Run{Task: 2, Pages: 1, Zero: true}, nil); !errors.Is(err, ErrStoreFull) {
		t.Errorf("one process too many: %v", err)
	}
	if err := s.Put(Run{Task: 1, Pages: 10, Zero: true}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(Run{Task: 1, Address: uint64(100 * size), Pages: 10}, filledWith(10, 3)); err != nil {
		t.Errorf("where others were: %v", err)
	}
	if used := s.Bytes(); used != 100*size+slotCost {
		t.Errorf("used: %d", used)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &st); err != nil || st.Blocks*512 > 100*size {
		t.Errorf("the file takes %d bytes, %v", st.Blocks*512, err)
	}
}

// TestStoreZerosAreBounded sends zeros for ever, which take no bandwidth.
func TestStoreZerosAreBounded(t *testing.T) {
	s := newTestStore(t, 1<<20)
	var err error
	n := uint64(0)
	for ; err == nil && n < 1<<20; n++ {
		err = s.Put(Run{Task: 1, Address: n * MaxZeroPages * uint64(PageSize()), Pages: MaxZeroPages,
			Zero: true}, nil)
	}
	if !errors.Is(err, ErrStoreFull) || n > 4 {
		t.Errorf("after %d runs: %v", n, err)
	}
}

func TestStoreMissing(t *testing.T) {
	size := uint64(PageSize())
	for name, areas := range map[string][]Area{
		"beside":  {{Start: 0, Pages: 11}},
		"inside":  {{Start: 0, Pages: 1}, {Start: 20 * size, Pages: 1}},
		"no slot": {{Start: 8 * slotBytes, Pages: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, 1<<30)
			if err := s.Put(Run{Task: 1, Pages: 10}, filledWith(10, 1)); err != nil {
				t.Fatal(err)
			}
			maps := []TaskMap{{Task: 1, Areas: areas}}
			if err := s.Check(maps); !errors.Is(err, ErrPagesMissing) {
				t.Errorf("Check: %v", err)
			}
			if err := s.Keep(maps); !errors.Is(err, ErrPagesMissing) {
				t.Errorf("Keep: %v", err)
			}
		})
	}
	s := newTestStore(t, 1<<30)
	if err := s.Keep([]TaskMap{{Task: 9, Areas: []Area{{Start: 0, Pages: 1}}}}); !errors.Is(err,
		ErrPagesMissing) {
		t.Errorf("Keep of a task that never came: %v", err)
	}
	if err := s.Keep([]TaskMap{{Task: 9}}); err != nil {
		t.Errorf("Keep of a task without pages: %v", err)
	}
}

func TestStoreRefuses(t *testing.T) {
	s := newTestStore(t, 1<<30)
	for name, run := range map[string]Run{
		"no task":       {Pages: 1},
		"no pages":      {Task: 1},
		"not aligned":   {Task: 1, Address: 1, Pages: 1},
		"beyond":        {Task: 1, Address: maxAddress, Pages: 1},
		"over the end":  {Task: 1, Address: maxAddress - uint64(PageSize()), Pages: 2},
		"short of data": {Task: 1, Pages: 2},
	} {
		if err := s.Put(run, filledWith(1, 1)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	image, err := s.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := s.Put(Run{Task: 1, Pages: 1}, filledWith(1, 1)); err == nil {
		t.Error("Put after Seal succeeds")
	}
	if _, err := s.Seal(); err == nil {
		t.Error("Seal after Seal succeeds")
	}
	if err := image.Pages.Truncate(slotBytes); err == nil {
		t.Error("an image can grow")
	}
	if slots, err := image.ReadIndex(); err != nil || len(slots) != 0 {
		t.Errorf("an empty image: %v, %v", slots, err)
	}
}

// TestStoreAgain: the store lists the existing pages whose content came more than once.
func TestStoreAgain(t *testing.T) {
	s := newTestStore(t, 1<<30)
	put := func(page, pages int, zero bool) {
		t.Helper()
		run := Run{Task: 1, Address: slotBytes + uint64(page*PageSize()), Pages: uint32(pages), Zero: zero}
		var data []byte
		if !zero {
			data = filledWith(pages, 1)
		}
		if err := s.Put(run, data); err != nil {
			t.Fatal(err)
		}
	}
	put(0, 100, false)
	put(62, 4, false)
	put(65, 3, true)  // 65 came again, and no longer exists
	put(66, 1, false) // it existed, and was zero, and exists
	put(99, 3, false) // of which the second and the third are new
	image, err := s.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	slots, err := image.ReadIndex()
	if err != nil || len(slots) != 1 {
		t.Fatalf("%d slots, %v", len(slots), err)
	}
	again := mask(slots[0].Again)
	for page := range slotBytes / PageSize() {
		if want := page >= 62 && page < 65 || page == 99; again.has(page) != want {
			t.Errorf("page %d came again: %v, want %v", page, again.has(page), want)
		}
	}
}

// TestStoreTogether puts from several connections in parallel.
func TestStoreTogether(t *testing.T) {
	s := newTestStore(t, 1<<30)
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for round := range 50 {
				for page := n; page < 800; page += 4 {
					run := Run{Task: 1, Address: uint64(page * PageSize()), Pages: 1}
					if err := s.Put(run, filledWith(1, byte(page+round))); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	page := make([]byte, PageSize())
	for n := range 800 {
		if has, err := s.ReadPage(1, uint64(n*PageSize()), page); err != nil || !has ||
			page[0] != byte(n+49) || page[PageSize()-1] != page[0] {
			t.Fatalf("page %d: %v, %v, %d", n, has, err, page[0])
		}
	}
	if want := int64(800*PageSize() + 2*slotCost); s.Bytes() != want {
		t.Errorf("%d bytes, want %d", s.Bytes(), want)
	}
}

func FuzzIndex(f *testing.F) {
	s, err := NewStore(1 << 30)
	if err != nil {
		f.Fatal(err)
	}
	for n := range uint64(3) {
		if err := s.Put(Run{Task: Task(n + 1), Address: n * slotBytes, Pages: 3},
			filledWith(3, 1)); err != nil {
			f.Fatal(err)
		}
	}
	if err := s.Put(Run{Task: 3, Address: 2 * slotBytes, Pages: 2}, filledWith(2, 2)); err != nil { // again
		f.Fatal(err)
	}
	if err := s.Remote([]TaskMap{{Task: 2,
		Areas: []Area{{Start: slotBytes + uint64(PageSize()), Pages: 600}}}}); err != nil {
		f.Fatal(err)
	}
	image, err := s.Seal()
	if err != nil {
		f.Fatal(err)
	}
	defer image.Close()
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", image.Index.Fd()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:imageHeader])
	f.Fuzz(func(t *testing.T, data []byte) {
		const size = 8 * slotBytes
		slots, err := decodeIndex(data, size)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Error(err)
			}
			return
		}
		for i := range slots {
			for w, again := range slots[i].Again {
				if again&^slots[i].Have[w] != 0 {
					t.Errorf("slot %d: what is not there came again: %+v", i, slots[i])
				}
			}
			if slots[i].Offset+SlotBytes > size || slots[i].Pages() > SlotBytes/PageSize() || i > 0 &&
				!slots[i-1].before(&slots[i]) {
				t.Errorf("slot %d: %+v", i, slots[i])
			}
		}
	})
}

// BenchmarkStore receives memory: new pages, and pages that existed before.
func BenchmarkStore(b *testing.B) {
	const pages = 256 << 20 / 4096
	data := filledWith(MaxRunPages, 7)
	for _, again := range []bool{false, true} {
		name := "fresh"
		if again {
			name = "again"
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(pages * 4096)
			s := newTestStore(b, 1<<30)
			for b.Loop() {
				if !again {
					b.StopTimer()
					s.Close()
					s = newTestStore(b, 1<<30)
					b.StartTimer()
				}
				for page := uint64(0); page < pages; page += MaxRunPages {
					if err := s.Put(Run{Task: 1, Address: page * 4096, Pages: MaxRunPages},
						data); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// TestStoreForgets: the memory of an ended task is freed.
func TestStoreForgets(t *testing.T) {
	s, err := NewStore(1 << 30)
	must(t, err)
	defer s.Close()
	content := make([]byte, 4*PageSize())
	for _, task := range []Task{1, 2} {
		must(t, s.Put(Run{Task: task, Address: slotBytes - uint64(PageSize()), Pages: 4}, content))
		must(t, s.Put(Run{Task: task, Address: 8 * slotBytes, Pages: 1000, Zero: true}, nil))
	}
	before := s.Bytes()
	must(t, s.Forget(1))
	must(t, s.Forget(3))
	if there, err := s.ReadPage(1, slotBytes, content); there || err != nil {
		t.Errorf("a forgotten page is there: %v", err)
	}
	if there, err := s.ReadPage(2, slotBytes, content); !there || err != nil {
		t.Errorf("another is not: %v", err)
	}
	if 2*s.Bytes() != before {
		t.Errorf("%d bytes are counted after %d", s.Bytes(), before)
	}
}
