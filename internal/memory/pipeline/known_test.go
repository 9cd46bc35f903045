package pipeline

import (
	"bytes"
	"sync"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

// TestKnown compares the sender's knowledge of the receiver's pages with the real ones, from several
// goroutines.
func TestKnown(t *testing.T) {
	for seed := range uint64(12) {
		m := newMoved(t, seed, 2, SenderConfig{CacheBytes: []int64{-1, 64 << 10, 0}[seed%3]}, nil)
		for range 4 {
			for range 100 {
				m.change(200)
			}
			m.round()
		}
		m.compare()
		m.sender.Close()
		var askers sync.WaitGroup
		known := make([]int, 2)
		for n := range known {
			askers.Go(func() { known[n] = m.known() })
		}
		askers.Wait()
		if cached := len(m.sender.cache.slots); known[0] != cached || known[1] != cached {
			t.Errorf("%d pages are known, and %d are kept", known, cached)
		}
		if seed%3 == 2 && known[0] < 30 {
			t.Errorf("only %d pages are known", known[0])
		}
	}
}

// known counts pages that the sender knows to be at the receiver.
func (m *moved) known() (count int) {
	hash, err := NewHasher(m.key)
	if err != nil {
		m.t.Error(err)
		return 0
	}
	page, has := make([]byte, memory.PageSize()), make([]byte, memory.PageSize())
	for task := range memory.Task(5) {
		for i := range 300 {
			address := uint64(i * memory.PageSize())
			digest, known := m.sender.Known(task, address, page)
			if !known {
				continue
			}
			count++
			there, err := m.store.ReadPage(task, address, has)
			if err != nil || !there || !bytes.Equal(page, has) || digest != hash.Page(has) {
				m.t.Errorf("the page at %#x of task %d is not what the receiver has (there: %v, %v)", address,
					task, there, err)
			}
		}
	}
	return count
}
