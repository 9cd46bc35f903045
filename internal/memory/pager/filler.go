package pager

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

const (
	smallChunk = 64 << 10 // copied at once while processes wait for pages
	largeChunk = 1 << 20  // copied at once otherwise
)

// filler fills the memory of all processes of a container.
type filler struct {
	imageFile
	families
	measured
	failed chan error // the first error that makes it impossible to continue
	freed  chan *slot
	work   bell // rings when there may be something to do for workers
	// called when a process waits for a remote page, with the family's lock
	faultRemote func(page remoteFault, slot *slot)

	mu     sync.Mutex
	spaces []*space // incomplete ones

	rested  atomic.Bool   // the background may take the processor
	changes atomic.Uint64 // changes that make a scan of all spaces worthwhile
	turn    atomic.Uint32
	scanned atomic.Uint64 // their number when a scan found nothing
	came    arrivals
	retries retries

	chunks [2]int // smallChunk and largeChunk, in pages
}

// remoteFault is a page for which a process waits, as the source knows it.
type remoteFault struct {
	task    memory.Task
	address uint64
	page    int // of the slot
}

func newFiller(image []memory.ImageSlot, data []byte, pages *os.File) *filler {
	f := &filler{
		imageFile: imageFile{image: image, data: data, pages: pages, pageSize: memory.PageSize()},
		families:  families{byTask: map[memory.Task]*family{}, noRemote: func() {}},
		measured:  measured{start: time.Now()},
		failed:    make(chan error, 1), freed: make(chan *slot, len(image)),
		faultRemote: func(remoteFault, *slot) {},
		chunks:      [2]int{smallChunk / memory.PageSize(), largeChunk / memory.PageSize()},
	}
	f.work.init()
	for first := 0; first < len(image); {
		task := image[first].Task
		m, remote := newFamily(task, f.slotsOf(task))
		m.forsaken = f.lessRemote
		f.remoteLeft.Add(int64(remote))
		f.byTask[task], f.order = m, append(f.order, m)
		first += len(m.slots)
	}
	return f
}

// add takes the userfaultfd of a task of the image and serves its faults from now on.
func (f *filler) add(task memory.Task, fd int) error {
	faults, err := kernel.NewFaults(fd)
	if err != nil {
		return err
	}
	m := f.byTask[task]
	if m == nil {
		m, _ = newFamily(task, nil) // it has only zero pages
		m.forsaken = f.lessRemote
		f.byTask[task] = m
	}
	if m.known {
		return errors.Join(fmt.Errorf("process %d comes twice", task), faults.Close())
	}
	s := newSpace(m, faults, f.slotsOf(task), f.pageSize)
	s.release = func(one *slot) { f.freed <- one }
	s.complete = f.look
	f.open(s)
	return nil
}

// open starts serving an address space.
func (f *filler) open(s *space) {
	f.mu.Lock()
	f.spaces = append(f.spaces, s)
	f.mu.Unlock()
	s.family.join(s)
	f.look()
	go f.serve(s)
}

// look makes the workers scan all spaces.
func (f *filler) look() {
	f.changes.Add(1)
	f.work.ring()
}

// fail ends the filling. The process must end with everything open, so that the guard can kill the
// container first.
func (f *filler) fail(err error) {
	select {
	case f.failed <- err:
	default: // the first error counts
	}
	f.work.ring()
}

// left counts the pages that are still missing.
func (f *filler) left() int64 {
	total := int64(0)
	for _, s := range f.living() {
		total += s.left.Load()
	}
	return total
}

func (f *filler) living() []*space {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.spaces)
}

// serve processes all messages of one process, until its memory is complete.
func (f *filler) serve(s *space) {
	err := s.faults.Wait(func() bool {
		began := f.since()
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return false
		}
		event, ok, err := s.faults.Read()
		if ok && event.Kind != kernel.FaultPage {
			f.apply(s, event)
		}
		s.mu.Unlock()
		if err != nil {
			f.fail(err)
			return false
		}
		if ok && event.Kind == kernel.FaultPage {
			f.fault(fault{space: s, address: event.Address &^ uint64(f.pageSize-1), began: began})
		}
		return ok
	})
	if err != nil && !errors.Is(err, os.ErrClosed) {
		f.fail(fmt.Errorf("wait for faults of process %d: %w", s.family.task, err))
	}
}

// apply records what a process did to its mappings. The caller holds the lock for writing.
func (f *filler) apply(s *space, event kernel.FaultEvent) {
	switch event.Kind {
	case kernel.FaultFork:
		f.counts.forks.Add(1)
		f.open(s.fork(event.Child))
	case kernel.FaultRemap:
		f.counts.remaps.Add(1)
		f.stir(s, event.Address, event.Address+event.Length)
		f.stir(s, event.To, event.To+event.Length)
		s.remap(event.Address, event.To, event.Length)
	case kernel.FaultRemove:
		f.counts.removes.Add(1)
		f.stir(s, event.Address, event.To)
		s.remove(event.Address, event.To)
	case kernel.FaultUnmap:
		f.counts.unmaps.Add(1)
		f.stir(s, event.Address, event.To)
		s.unmap(event.Address, event.To)
	case kernel.FaultPage: // the caller handles it
	}
}

// stir wakes threads that wait for pages at addresses where the mapping changes, because these pages may
// never come there. The threads look again. The caller holds the lock for writing.
func (f *filler) stir(s *space, start, end uint64) {
	s.within(start, end, func(page, pages int) {
		for _, one := range s.family.waitFor(page, pages, s) {
			f.waits.end(one.began, f.since())
			// it fails for addresses that no process can have
			_ = s.faults.Wake(one.address, uint64(f.pageSize))
		}
	})
}

// finish closes an address space without missing pages: pages that never existed are zero from now on
// without the pager.
func (f *filler) finish(s *space) {
	if f.detach(s) {
		// Not under the lock: Close waits for the reader of messages, which may be waiting for the lock.
		_ = s.faults.Close() // the descriptor is open, so this cannot fail
		f.work.ring()
	}
}

// detach removes an address space without missing pages. Nobody uses its userfaultfd after that.
func (f *filler) detach(s *space) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.left.Load() > 0 && !s.gone.Load() {
		return false
	}
	s.closed = true
	f.mu.Lock()
	f.spaces = slices.DeleteFunc(f.spaces, func(other *space) bool { return other == s })
	f.mu.Unlock()
	for _, one := range s.family.leave(s) {
		f.waits.end(one.began, f.since())
	}
	if s.left.Load() > 0 {
		f.counts.died.Add(1)
		s.giveUp()
	} else {
		f.counts.completed.Add(1)
	}
	return true
}

// bury finds processes that have ended: nobody reports that, and while all of their missing pages are
// remote, no copy fails.
func (f *filler) bury() {
	for _, s := range f.living() {
		s.mu.RLock()
		gone := !s.closed && s.faults.Gone()
		s.mu.RUnlock()
		if gone {
			s.gone.Store(true)
			f.look()
		}
	}
}

// close ends the filling of processes that will never run.
func (f *filler) close() {
	for _, s := range f.living() {
		s.gone.Store(true)
		f.finish(s)
	}
}

// tell copies the filler's counts into a report.
func (f *filler) tell(r *memory.FillReport) {
	if !r.Resumed.IsZero() { // before that not all processes are known
		r.LeftPages = f.left()
	}
	r.RemoteLeft = f.remoteLeft.Load()
	f.measured.tell(r)
	if !r.Completed.IsZero() {
		r.FillSeconds = r.Completed.Sub(r.Resumed).Seconds()
	}
}
