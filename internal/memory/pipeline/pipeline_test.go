package pipeline

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// change makes changes to memory that real programs make.
func (m *moved) change(pages int) {
	task, page := memory.Task(1+m.random.IntN(3)), m.random.IntN(pages)
	switch m.random.IntN(9) {
	case 0: // new content
		m.write(task, page, m.randomPage())
	case 1, 2: // a small change
		content := m.any(task, pages)
		if old := m.source[task][uint64(page*memory.PageSize())]; old != nil {
			content = slices.Clone(old)
		}
		for range 1 + m.random.IntN(40) {
			content[m.random.IntN(len(content))] = byte(m.random.Uint32())
		}
		m.write(task, page, content)
	case 3: // another process's content, in a row
		other := memory.Task(1 + m.random.IntN(3))
		for i := page; i < min(pages, page+1+m.random.IntN(30)); i++ {
			if p := m.source[other][uint64(i*memory.PageSize())]; p != nil {
				m.write(task, i, p)
			}
		}
	case 4: // content from elsewhere, moved by a few pages, up or down
		n, by := m.random.IntN(20), m.random.IntN(7)-3
		var row [][]byte
		for i := range n {
			row = append(row, m.source[task][uint64((page+i)*memory.PageSize())])
		}
		for i, p := range row {
			if at := page + i + by; p != nil && at >= 0 && at < pages {
				m.write(task, at, p)
			}
		}
	case 5:
		m.write(task, page, make([]byte, memory.PageSize()))
	case 6: // the same again
		m.write(task, page, m.any(task, pages))
	case 7: // one content many times
		content := m.any(task, pages)
		for i := page; i < min(pages, page+m.random.IntN(20)); i++ {
			m.write(task, i, content)
		}
	case 8:
		if m.random.IntN(20) == 0 && m.source[task] != nil {
			must(m.t, m.sender.Forget(task))
			delete(m.source, task)
			delete(m.dirty, task)
		}
	}
}

// TestSameMemory checks the property: whatever is written, over any number of lanes, with any cache, the
// target has the same.
func TestSameMemory(t *testing.T) {
	var total Stats
	for seed := range uint64(60) {
		lanes, cache := 1+int(seed%4), []int64{-1, 64 << 10, 0}[seed%3]
		m := newMoved(t, seed, lanes, SenderConfig{CacheBytes: cache}, nil)
		for range 8 {
			for range m.random.IntN(200) {
				m.change(300)
			}
			m.round()
			m.compare()
		}
		if cache < 0 && m.sender.Stats().DeltaPages > 0 {
			t.Error("deltas without a cache")
		}
		s := m.sender.Stats()
		if s.Pages != s.UnchangedPages+s.ZeroPages+s.ReferencePages+s.DeltaPages+s.ContentPages {
			t.Errorf("the parts are not the whole: %+v", s)
		}
		total = s.Minus(Stats{}.Minus(total))
	}
	t.Logf("%+v", total)
	if total.UnchangedPages == 0 || total.ZeroPages == 0 || total.ReferencePages == 0 ||
		total.DeltaPages == 0 || total.ContentPages == 0 {
		t.Errorf("not all ways were used: %+v", total)
	}
}

// forgetful is a store that has lost or changed some of its pages.
type forgetful struct {
	pages  map[spot][]byte
	broken bool
}

func (f *forgetful) ReadPage(task memory.Task, address uint64, page []byte) (bool, error) {
	content := f.pages[spot{task, address}]
	if content == nil {
		return false, nil
	}
	copy(page, content)
	if f.broken && address%3 == 0 {
		page[77]++
	}
	return !f.broken || address%5 != 0, nil
}

// TestBase begins with an older copy at the target, complete, or partly lost or damaged.
func TestBase(t *testing.T) {
	for seed := range uint64(20) {
		had := &forgetful{pages: map[spot][]byte{}}
		m := newMoved(t, seed, 1+int(seed%3), SenderConfig{}, had)
		for range 300 {
			m.change(200)
		}
		var listed []memory.TaskMap
		for _, task := range sorted(m.source) {
			one := memory.TaskMap{Task: task}
			for _, address := range sorted(m.source[task]) {
				had.pages[spot{task, address}] = slices.Clone(m.source[task][address])
				one.Areas = append(one.Areas, memory.Area{Start: address, Pages: 1})
			}
			listed = append(listed, one)
		}
		hash, err := NewHasher(m.key)
		must(t, err)
		must(t, Claims(had, hash, listed, m.sender.Claim))
		had.broken = seed%2 == 1
		for range 50 {
			m.change(200)
		}
		m.round()
		if len(m.missing) > 0 {
			if err := m.target.Complete(); !errors.Is(err, ErrMissing) {
				t.Errorf("pages are missing, and it is complete: %v", err)
			}
			m.again()
			m.round()
		}
		m.compare()
		if s := m.sender.Stats(); s.BasePages == 0 {
			t.Errorf("nothing of the base was used: %+v", s)
		}
		for range 200 {
			m.change(200)
		}
		m.round()
		m.compare()
	}
}

// TestLostPages lets the store lose or change pages without the pipeline's knowledge: the sender is told,
// and sends them again.
func TestLostPages(t *testing.T) {
	lost := 0
	for seed := range uint64(20) {
		m := newMoved(t, seed, 2, SenderConfig{}, nil)
		for range 300 {
			m.change(200)
		}
		m.round()
		for task, pages := range m.source {
			for address := range pages {
				if m.random.IntN(4) == 0 {
					must(t, m.store.Put(memory.Run{Task: task, Address: address, Pages: 1}, m.randomPage()))
					m.dirty[task][address] = true // it has to be sent again, which the sender does not know
					binary.LittleEndian.PutUint64(m.source[task][address][8:], m.random.Uint64())
				}
			}
		}
		m.round()
		for tries := 0; len(m.missing) > 0; tries++ {
			lost++
			if tries == 5 {
				t.Fatal("it is never complete")
			}
			m.again()
			m.round()
		}
		m.compare()
	}
	if lost == 0 {
		t.Error("nothing was found missing")
	}
}
