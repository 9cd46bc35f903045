package pager

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// aroundPages is the number of pages that are filled with a touched page: the part of a slot, of this size,
// that contains it.
const aroundPages = 32

const (
	retryPause      = 20 * time.Microsecond
	longestRetry    = 10 * time.Millisecond
	memoryPause     = 10 * time.Millisecond
	memoryPatience  = 30 * time.Second // how long the container's memory limit may prevent filling
	tooLong, tooFew = "the kernel has not accepted the page for too long",
		"the memory limit does not allow the pages that the container had before"
)

// fault is an access of a process that waits for its page. Times are relative to the filler's start.
type fault struct {
	space   *space
	address uint64
	began   time.Duration
	tried   time.Duration // start of the retries
	fetched bool          // the page was still at the source
}

// fault serves one page for which a process waits.
func (f *filler) fault(one fault) {
	f.counts.faults.Add(1)
	f.lastFault.Store(int64(one.began))
	f.waits.begin(one.began)
	f.tend(one)
}

// tend serves a fault, now or later.
func (f *filler) tend(one fault) {
	if again := f.attend(one); again {
		f.counts.retries.Add(1)
		one.tried = f.since()
		f.retryLater(one)
	}
}

// attend serves a fault, or records that it waits. Again: that is impossible while the mapping is changing.
func (f *filler) attend(one fault) (again bool) {
	waits, again, err := f.serveFault(one)
	switch {
	case err != nil:
		f.fail(err)
	case !again && !waits:
		now := f.since()
		f.waits.end(one.began, now)
		f.latencies.add(now - one.began)
		if one.fetched {
			f.fetched.add(now - one.began)
			break // the rest comes as it is sent, and its sender has no time
		}
		f.around(one.space, one.address)
	}
	return again
}

// around fills the available pages around a touched one. Processes touch them next, and a fault takes two
// changes of threads: many times the cost of copying another page.
func (f *filler) around(s *space, address uint64) {
	s.mu.RLock()
	page, ok := s.at(address)
	s.mu.RUnlock()
	if !ok {
		return
	}
	first := page - page%aroundPages
	if step, err := f.fillPages(s, first, first+aroundPages); err != nil && !errors.Is(err, unix.ENOMEM) {
		f.fail(err)
	} else if step != worked {
		f.look() // the background tries again
	}
}

// serveFault fills one page, with zeros if it is not missing.
func (f *filler) serveFault(one fault) (waits, again bool, err error) {
	s, address := one.space, one.address
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return false, false, nil
	}
	if page, missing := s.find(address); missing {
		if f.leave(s, page, one) {
			return true, false, nil
		}
		err = f.copy(s, stretch{address: address, page: page, pages: 1, kind: s.kind(page)})
	} else if _, err = s.faults.Zero(address, uint64(f.pageSize)); err == nil {
		f.counts.zeros.Add(1)
		return false, false, nil
	}
	switch {
	case errors.Is(err, kernel.ErrFaultRetry), errors.Is(err, unix.ENOMEM):
		return false, true, nil
	case errors.Is(err, kernel.ErrFaultGone):
		s.gone.Store(true)
		f.look()
		return false, false, nil
	case err == nil, errors.Is(err, kernel.ErrFaultThere), errors.Is(err, kernel.ErrFaultUnmapped):
		// Another thread was faster, possibly before the fault was known.
		err = s.faults.Wake(address, uint64(f.pageSize))
		if errors.Is(err, kernel.ErrFaultGone) || errors.Is(err, kernel.ErrFaultUnmapped) {
			err = nil
		}
	}
	return false, false, err
}

// leave records that a fault waits for a page that is still at the source, and requests the page.
func (f *filler) leave(s *space, page int, one fault) bool {
	at := s.slots[page/slotPages]
	return s.family.await(page, one, func() {
		index := page % slotPages
		f.faultRemote(remoteFault{s.family.task, at.address + uint64(index*f.pageSize), index}, at)
	})
}

// retries are faults that came while the mapping was changing, until the message about that is read, or
// while there was no memory. One goroutine retries them while there are any.
type retries struct {
	mu      sync.Mutex
	faults  []fault
	running bool
}

func (f *filler) retryLater(one fault) {
	r := &f.retries
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, one)
	if !r.running {
		r.running = true
		go f.retry()
	}
}

func (f *filler) retry() {
	r := &f.retries
	for pause := retryPause; ; {
		time.Sleep(pause)
		r.mu.Lock()
		now := r.faults
		r.faults = nil
		r.running = len(now) > 0
		r.mu.Unlock()
		if len(now) == 0 {
			return
		}
		pause = min(2*pause, longestRetry)
		for _, one := range now {
			switch again := f.attend(one); {
			case !again:
				pause = retryPause
			case f.since()-one.tried > memoryPatience:
				f.fail(fmt.Errorf("process %d waits for its page at %#x: %s", one.space.family.task,
					one.address, tooLong))
				return
			default:
				f.retryLater(one)
			}
		}
	}
}

// copy fills missing pages that are here. The caller holds the lock for reading.
func (f *filler) copy(s *space, what stretch) error {
	for chunk, again := what.pages, false; what.pages > 0; {
		chunk = min(chunk, what.pages)
		n, err := f.put(s, what, chunk)
		switch {
		case err == nil:
			chunk = what.pages - n
		case errors.Is(err, kernel.ErrFaultThere):
			n = 1 // the first, or another after it: then the next copy is partial
		case errors.Is(err, kernel.ErrFaultUnmapped) && chunk > 1:
			chunk /= 2 // these pages are in several mappings, or the last of them in none
			continue
		case errors.Is(err, kernel.ErrFaultUnmapped) && !again:
			// The mapping may have just moved: the kernel looks for the mapping between two checks for
			// changes (mm/userfaultfd.c, uffd_mfill_lock, since Linux 6.9). While the lock is held, nobody
			// reads the message about the change, so the next copy returns that error.
			again = true
			continue
		case errors.Is(err, kernel.ErrFaultUnmapped):
			f.counts.gone.Add(1)
			n, chunk = 1, what.pages-1
		default:
			return err
		}
		again = false
		s.done(what.page, n)
		what.page, what.pages = what.page+n, what.pages-n
		what.address += uint64(n * f.pageSize)
	}
	return nil
}

// waits adds up how long threads wait for pages. Times are relative to the filler's start.
type waits struct {
	mu     sync.Mutex
	active int64
	begun  time.Duration // sum over those that wait
	since  time.Duration // when the first of them began
	all    time.Duration // sum over those that have waited
	any    time.Duration // how long at least one did
}

func (w *waits) begin(now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active == 0 {
		w.since = now
	}
	w.active++
	w.begun += now
}

func (w *waits) end(began, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active--
	w.begun -= began
	w.all += now - began
	if w.active == 0 {
		w.any += now - w.since
	}
}

// until returns the total time for which threads have waited so far, and the time in which at least one
// did.
func (w *waits) until(now time.Duration) (all, one time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all, one = w.all, w.any
	if w.active > 0 {
		all += time.Duration(w.active)*now - w.begun
		one += now - w.since
	}
	return all, one
}
