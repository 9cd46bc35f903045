package memory

import (
	"os"
	"slices"

	"github.com/godwit/godwit/internal/kernel"
)

// Residual is a residual memory copy: the pages of a container that has left, kept in case it comes back.
// No restore reads it. It only tells the node that brings the container back which contents need not
// travel. It is a Sink; its methods may be called concurrently.
type Residual struct{ store *Store }

// NewResidual makes a residual copy of at most limit bytes, in a file that Close closes.
func NewResidual(file *os.File, limit int64) *Residual { return &Residual{newStore(file, limit)} }

// Put keeps a run. Zero pages are not worth keeping. Shared memory is kept as if it belonged to
// processes with numbers that no process has: where a page was does not matter. Error: ErrStoreFull;
// the pages that are kept already stay.
func (r *Residual) Put(run Run, data []byte) error {
	if run.Zero {
		return nil
	}
	if run.Task.IsObject() {
		if run.Address+uint64(run.Pages)*uint64(PageSize()) > maxObjectBytes {
			return nil // it describes the object
		}
		run.Task = maxTask - (run.Task - FirstObject)
	}
	return r.store.Put(run, data)
}

// ReadPage reads the contents of a page, or returns false if they are not there (any more).
func (r *Residual) ReadPage(task Task, address uint64, page []byte) (bool, error) {
	return r.store.ReadPage(task, address, page)
}

// Bytes returns how much memory the residual copy takes.
func (r *Residual) Bytes() int64 { return r.store.Bytes() }

// Close frees the memory.
func (r *Residual) Close() error { return r.store.Close() }

// Contents lists at most this many of its pages.
func (r *Residual) Contents(most uint64) []TaskMap {
	s := r.store
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
					m.Areas = appendArea(m.Areas, 0,
						kernel.PageRange{Start: at, End: at + uint64(PageSize())})
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
