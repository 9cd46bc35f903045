package pager

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

const (
	pressure   = 5 * time.Millisecond
	maxWorkers = 4
	// How long the background waits when the processes run, and at most while they constantly touch missing
	// pages. First they have to answer clients that have waited, for which they need the pages that they
	// touch, and the processor.
	firstRest, longestRest = 20 * time.Millisecond, 100 * time.Millisecond
	// workerNiceness gives the processes and the serving of their faults priority over the background.
	workerNiceness = 5
)

// bell lets workers sleep until there is something to do.
type bell struct {
	mu    sync.Mutex
	cond  *sync.Cond
	rings uint64
}

func (b *bell) init() { b.cond = sync.NewCond(&b.mu) }

func (b *bell) ring() {
	b.mu.Lock()
	b.rings++
	b.mu.Unlock()
	b.cond.Broadcast()
}

func (b *bell) heard() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rings
}

// wait returns when the bell has rung since then.
func (b *bell) wait(since uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.rings == since {
		b.cond.Wait()
	}
}

// arrivals are pages that have come from the source and must be filled wherever they are missing. If there
// are too many of them, all spaces are scanned instead.
type arrivals struct {
	mu  sync.Mutex
	all []arrival
}

type arrival struct {
	family      *family
	page, pages int
}

const maxArrivals = 4096

// put adds an arrival; false if there are too many.
func (a *arrivals) put(one arrival) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) >= maxArrivals {
		return false
	}
	a.all = append(a.all, one)
	return true
}

func (a *arrivals) take() (arrival, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) == 0 {
		return arrival{}, false
	}
	one := a.all[0]
	if a.all = a.all[1:]; len(a.all) == 0 {
		a.all = nil // so that the taken ones can be freed
	}
	return one, true
}

// run fills in the background until nothing is missing. It is called when all memory is registered.
func (f *filler) run() error {
	f.allKnown()
	go f.rest()
	var workers sync.WaitGroup
	for range min(runtime.NumCPU(), maxWorkers) {
		workers.Go(f.worker)
	}
	finished := make(chan struct{})
	go func() { workers.Wait(); close(finished) }()
	for {
		select {
		case err := <-f.failed:
			return err
		case one := <-f.freed:
			if err := f.free(one); err != nil {
				return err
			}
		case <-finished:
			return f.clear()
		}
	}
}

// rest delays the background until the processes have the pages that they touch first.
func (f *filler) rest() {
	began := f.since()
	for time.Sleep(firstRest); f.pressed() && f.since()-began < longestRest; {
		time.Sleep(pressure)
	}
	f.rested.Store(true)
	f.look()
}

// clear is called when all workers have ended.
func (f *filler) clear() error {
	for {
		select {
		case err := <-f.failed:
			return err
		case one := <-f.freed:
			if err := f.free(one); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// did is the result of a worker's step.
type did uint8

const (
	nothing did = iota // there is nothing to do until the bell rings
	worked
	mustRetry // the mapping is changing
	ended     // all is complete
)

// worker is the main function of a worker.
func (f *filler) worker() {
	kernel.GiveWay(workerNiceness)
	var hungry time.Time
	pause := retryPause
	for len(f.failed) == 0 {
		heard := f.work.heard()
		step, err := f.step()
		switch {
		case errors.Is(err, unix.ENOMEM):
			if hungry.IsZero() {
				hungry = time.Now()
			}
			if time.Since(hungry) > memoryPatience {
				f.fail(fmt.Errorf("fill the memory of the container: %w: %s", err, tooFew))
				return
			}
			time.Sleep(memoryPause)
			continue
		case err != nil:
			f.fail(err)
			return
		case step == ended:
			return
		case step == mustRetry:
			time.Sleep(pause)
			pause = min(2*pause, longestRetry)
			continue
		case step == nothing:
			f.work.wait(heard)
		}
		hungry, pause = time.Time{}, retryPause
	}
}

// step fills one chunk: of arrivals, or of the next process in turn.
func (f *filler) step() (did, error) {
	if one, ok := f.came.take(); ok {
		step, err := f.fillArrival(one)
		if step == mustRetry || err != nil {
			f.later(one)
		}
		return step, err
	}
	if !f.rested.Load() {
		return nothing, nil
	}
	if changes := f.changes.Load(); changes != f.scanned.Load() {
		if step, err := f.scan(); step != nothing || err != nil {
			return step, err
		}
		f.scanned.Store(changes)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.spaces) == 0 {
		return ended, nil
	}
	return nothing, nil
}

// later schedules pages that could not be filled now. They are filled with all other missing pages, or,
// before the background starts, separately, because a process may wait for them.
func (f *filler) later(one arrival) {
	if f.rested.Load() || !f.came.put(one) {
		f.look()
	}
}

// scan searches all spaces for something to fill, each time starting at another one.
func (f *filler) scan() (did, error) {
	all, turn := f.living(), int(f.turn.Add(1))
	for i := range all {
		s := all[(turn+i)%len(all)]
		if s.left.Load() == 0 || s.gone.Load() {
			f.finish(s)
			continue
		}
		step, err := f.fillNext(s)
		if step != nothing || err != nil {
			return step, err
		}
	}
	return nothing, nil
}

func (f *filler) chunkPages() int {
	if f.pressed() {
		return f.chunks[0]
	}
	return f.chunks[1]
}

func (f *filler) fillNext(s *space) (did, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nothing, nil
	}
	found, ok := s.claim(f.chunkPages())
	if !ok {
		return nothing, nil
	}
	return f.background(s, found)
}

// fillArrival fills arrived pages wherever they are missing.
func (f *filler) fillArrival(one arrival) (did, error) {
	step := worked
	for _, s := range one.family.living() {
		part, err := f.fillPages(s, one.page, one.page+one.pages)
		if err != nil {
			return part, err
		}
		if part == mustRetry {
			step = mustRetry
		}
	}
	return step, nil
}

func (f *filler) fillPages(s *space, page, end int) (did, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for !s.closed {
		first, ok := s.firstHere(page, end)
		if !ok {
			break
		}
		address, most, ok := s.locate(first)
		if page = first + 1; !ok {
			continue // it is not mapped anywhere
		}
		found := s.stretch(address, first, min(most, end-first))
		if step, err := f.background(s, found); step == mustRetry || err != nil {
			return step, err
		}
		page = first + found.pages
	}
	return worked, nil
}

// background copies pages, and returns the result.
func (f *filler) background(s *space, what stretch) (did, error) {
	err := f.copy(s, what)
	switch {
	case errors.Is(err, kernel.ErrFaultRetry):
		f.counts.retries.Add(1)
		return mustRetry, nil
	case errors.Is(err, kernel.ErrFaultGone):
		s.gone.Store(true)
		f.look()
		return worked, nil
	}
	return worked, err
}
