package memory

import (
	"os"
	"slices"

	"github.com/godwit/godwit/internal/kernel"
)

// Footprint keeps what the pages of a container held that has left, in case it comes back. No
// restore takes anything from it: it only tells who brings the container back which contents need
// not travel. It is a Sink; its methods may be called concurrently.
type Footprint struct{ store *Store }

// NewFootprint makes a footprint that takes at most limit bytes, in a file that it closes in the end.
func NewFootprint(file *os.File, limit int64) *Footprint { return &Footprint{newStore(file, limit)} }

// Put keeps a run. What is zero is not worth keeping. Shared memory is kept as if it were of
// processes whose numbers no process has: where a content was does not matter. Error: ErrStoreFull;
// what is there already stays.
func (f *Footprint) Put(run Run, data []byte) error {
	if run.Zero {
		return nil
	}
	if run.Task.IsObject() {
		if run.Address+uint64(run.Pages)*uint64(PageSize()) > maxObjectBytes {
			return nil // it describes the object
		}
		run.Task = maxTask - (run.Task - FirstObject)
	}
	return f.store.Put(run, data)
}

// ReadPage reads what a page held, or returns false if that is not there (any more).
func (f *Footprint) ReadPage(task Task, address uint64, page []byte) (bool, error) {
	return f.store.ReadPage(task, address, page)
}

// Bytes is how much memory it takes.
func (f *Footprint) Bytes() int64 { return f.store.Bytes() }

// Close gives the memory back.
func (f *Footprint) Close() error { return f.store.Close() }

// Contents lists at most so many of its pages.
func (f *Footprint) Contents(most uint64) []TaskMap {
	s := f.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var maps []TaskMap
	for _, task := range sortedKeys(s.tasks) {
		m := TaskMap{Task: task}
		for _, address := range sortedKeys(s.tasks[task]) {
			one := s.tasks[task][address]
			for page := range slotBytes / PageSize() {
				if most > 0 && one.have.has(page) {
					at := address + uint64(page*PageSize())
					m.Areas = appendArea(m.Areas, 0, kernel.PageRange{Start: at, End: at + uint64(PageSize())})
					most--
				}
			}
		}
		maps = append(maps, m)
	}
	return maps
}

func sortedKeys[K ~uint32 | ~uint64, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
