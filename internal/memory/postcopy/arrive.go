package postcopy

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream"
)

// putPages is how many pages are put at once: a requested page waits for at most this many.
const putPages = 64

// inlet takes pages from the sections of a session.
type inlet struct {
	*running
	urgent  bool
	decoder memory.Decoder
	patcher *patcher // nil: no change has come yet
}

// take receives a section of pages or of changes.
func (in *inlet) take(next stream.Section) error {
	switch {
	case next.Kind != kindPages && next.Kind != kindChanges:
		return unknown(next)
	case in.config.Pages == nil:
		return nil // it left before the source was told
	case next.Kind == kindChanges:
		return in.takeChanges(next)
	}
	w := &witness{Reader: next}
	limits := memory.Limits{Pages: uint64(in.layout.pages), Runs: uint64(in.layout.pages)}
	var failed error
	err := in.decoder.Decode(w, &limits, func(run memory.Run, data []byte) error {
		failed = in.arrived(run, data, in.urgent)
		return failed
	})
	if failed != nil || err == nil {
		return failed
	}
	return w.blame("pages", err)
}

func (in *inlet) takeChanges(next io.Reader) error {
	if in.name != takesChanges {
		return peerError("it sends changes of pages, and was not told that they can be taken")
	}
	if in.patcher == nil {
		var err error
		if in.patcher, err = newPatcher(in.config.Before, in.config.Key); err != nil {
			return err
		}
	}
	return decodeChanges(next, func(c change) error {
		run := memory.Run{Task: c.task, Address: c.address, Pages: 1}
		return in.changed(run, c)
	})
}

// changed makes a page from a change, if the page is missing, and puts it.
func (in *inlet) changed(run memory.Run, c change) error {
	n, _, err := in.expect(run, in.urgent)
	if err != nil {
		return err
	}
	if first, last := in.stretch(n, n+1, false); first == last {
		return nil
	}
	page, err := in.patcher.apply(c)
	if errors.Is(err, ErrStale) {
		return in.setStale(n, err)
	}
	if err != nil {
		return err
	}
	in.tally.changed(run, in.urgent, changeHeader+len(c.delta))
	if isZero(page) {
		run.Zero, page = true, nil
	}
	if err := in.put(run, page, in.urgent); err != nil {
		return err
	}
	in.here(n, n+1)
	return nil
}

// setStale records a page whose change did not match. Usually nobody needs the page any more, which is why
// its earlier content is gone: the filler of the memory reports that in the end. Only if a process waits
// for the page must other connections bring it, at once.
func (r *running) setStale(n int, why error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stale == nil {
		r.stale = newSet(r.layout.pages)
	}
	r.stale.add(n, n+1)
	r.stales, r.why = r.stales+1, why
	if r.asked.has(n) {
		return why
	}
	return nil
}

// onlyStale returns why the rest does not come on these connections; nil: it does, or there is none.
func (r *running) onlyStale() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stales == 0 || r.left > r.stales || r.finished {
		return nil
	}
	return r.why
}

// arrived checks a run and puts its missing pages.
func (r *running) arrived(run memory.Run, data []byte, urgent bool) error {
	from, to, err := r.expect(run, urgent)
	if err != nil {
		return err
	}
	r.tally.carried(run, urgent, len(data))
	size := memory.PageSize()
	for n := from; n < to; {
		first, last := r.stretch(n, to, run.Zero)
		if first == last {
			return nil // the rest is here, or not needed
		}
		part := memory.Run{Task: run.Task, Address: run.Address + uint64((first-from)*size),
			Pages: uint32(last - first), Zero: run.Zero}
		var content []byte
		if !run.Zero {
			content = data[(first-from)*size : (last-from)*size]
		}
		if err := r.put(part, content, urgent); err != nil {
			return err
		}
		r.here(first, last)
		n = last
	}
	return nil
}

// stretch returns the next consecutive missing pages of [n, to).
func (r *running) stretch(n, to int, zero bool) (first, last int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished {
		return to, to
	}
	first = r.missing.next(n, to)
	last = r.missing.gap(first, to)
	if !zero {
		last = min(last, first+putPages)
	}
	return first, last
}

// put passes pages on, when it is the turn of the connection that brought them.
func (r *running) put(run memory.Run, data []byte, urgent bool) error {
	r.turn.take(urgent)
	defer r.turn.pass()
	err := r.config.Pages.Put(run, data)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished {
		return nil // nobody needs them
	}
	return fmt.Errorf("%w: hand over %d pages at %#x of task %d: %w", ErrTarget, run.Pages, run.Address,
		run.Task, err)
}

// here records that pages have been passed on.
func (r *running) here(from, to int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing.remove(from, to)
	r.left -= to - from
	r.tally.update(func(s *Stats) { s.LeftPages = int64(r.left) })
}

// expect checks that a run may come, and records that it may not come again.
func (r *running) expect(run memory.Run, urgent bool) (from, to int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, to, ok := r.layout.numbers(run.Task, run.Address, uint64(run.Pages))
	switch {
	case !ok:
		return 0, 0, peerError("it sends %d pages at %#x of task %d, of which not all are remote",
			run.Pages, run.Address, run.Task)
	case r.expected.count(from, to) != to-from:
		return 0, 0, peerError("it sends %d pages at %#x of task %d, of which some had come before",
			run.Pages, run.Address, run.Task)
	case urgent && r.asked.count(from, to) != to-from:
		return 0, 0, peerError("it sends %d pages at %#x of task %d as requested, and not all of them were",
			run.Pages, run.Address, run.Task)
	}
	r.expected.remove(from, to)
	return from, to, nil
}

// turn lets one goroutine at a time put pages, those with urgent pages first. Its zero value is ready.
type turn struct {
	mu     sync.Mutex
	freed  sync.Cond // its lock is set with the first use
	taken  bool
	urgent int // number of waiting ones
}

func (t *turn) take(urgent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.freed.L = &t.mu
	if urgent {
		t.urgent++
		defer func() { t.urgent-- }()
	}
	for t.taken || !urgent && t.urgent > 0 {
		t.freed.Wait()
	}
	t.taken = true
}

func (t *turn) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	t.freed.Broadcast()
}
