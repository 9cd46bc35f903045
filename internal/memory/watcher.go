package memory

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// Watcher measures how many distinct pages the processes of a container write within a time, and what their
// pages contain. It is for one goroutine, and for running processes. It is cheap: Begin write-protects all
// pages once; a written page costs the process one fault of a microsecond, however often it is written; and
// Written scans the page tables, 1 ms per GiB.
//
// Where the kernel cannot track writes, and for memory that processes share, Begin reads some pages, and
// Written compares them. When it is closed, or its agent dies, nothing is left in the processes.
type Watcher struct {
	source *Source
	chance *rand.Rand
	known  []spot  // pages of untracked memory that Begin has read
	whole  float64 // bytes of that memory
	like   []spot  // pages of all other memory, to see how much of a page changes
}

// Written is the memory written since the last Begin.
type Written struct {
	Bytes float64 // of distinct pages
	// Compared is how much of the memory was not tracked, but compared in a sample.
	Compared float64
	// Changed is the changed share of a written page, from a sample; 0: none was seen.
	Changed float64
}

// NewWatcher returns a watcher that is not attached to anything yet.
func NewWatcher(config SourceConfig) *Watcher {
	seed := uint64(time.Now().UnixNano())
	return &Watcher{source: NewSource(config),
		chance: rand.New(rand.NewPCG(seed, seed))} //nolint:gosec // which pages are looked at is no secret
}

// spot is some pages of a process.
type spot struct {
	task    *task
	address uint64
	content []byte
}

const (
	// watchedPages is how many pages are read to be compared: the result is exact to 3 % of all memory in
	// nine of ten cases.
	watchedPages = 1024
	// likePages is how many pages are read only to see how much of a page changes.
	likePages = 512
)

// Begin starts watching, or starts again.
func (w *Watcher) Begin() error {
	s := w.source
	if err := s.tasks.update(false, &RoundStats{}); err != nil {
		return err
	}
	if len(s.tasks.all) > 1 {
		if err := s.tasks.lookForSharing(&RoundStats{RoundTracking: RoundTracking{Attached: 1}}); err != nil {
			return err
		}
	}
	for _, t := range s.tasks.inOrder() {
		if err := ignoreGone(w.arm(t)); err != nil {
			return t.describe(err)
		}
	}
	return w.remember()
}

// arm write-protects all pages of a process that is tracked in this way.
func (w *Watcher) arm(t *task) error {
	if t.tracking != WriteProtect {
		return nil
	}
	if err := t.pagemap.Reopen(t.space); err != nil {
		return err
	}
	if err := t.tracker.begin(false); err != nil {
		return err
	}
	areas, err := t.lazyAreas()
	for _, m := range areas {
		if err == nil {
			err = t.tracker.written(t.pagemap, m, func([]kernel.PageRange) error { return nil })
		}
	}
	if errors.Is(err, errStale) { // it has called execve: all of its memory is new
		t.stale, err = true, nil
	}
	return err
}

// Written returns what was written.
func (w *Watcher) Written() (Written, error) {
	var all Written
	pids, err := w.source.tasks.config.Processes()
	if err != nil {
		return all, err
	}
	for _, pid := range pids {
		if w.source.tasks.all[pid] == nil { // all of its memory is new
			use, err := kernel.ReadPrivateUse(pid)
			if ignoreGone(err) != nil {
				return all, err
			}
			all.Bytes += float64(use.Parts)
		}
	}
	for _, t := range w.source.tasks.inOrder() {
		pages, err := w.count(t)
		if ignoreGone(err) != nil {
			return all, t.describe(err)
		}
		all.Bytes += float64(pages) * float64(PageSize())
	}
	w.compare(&all)
	return all, nil
}

// count returns how many pages of a process the kernel reports as written.
func (w *Watcher) count(t *task) (pages uint64, err error) {
	if t.tracking != WriteProtect {
		return 0, nil
	}
	if err := t.pagemap.Reopen(t.space); err != nil {
		return 0, err
	}
	areas, err := t.lazyAreas()
	if err != nil {
		return 0, err
	}
	for _, m := range areas {
		look := t.pagemap.WrittenSoFar
		if t.stale {
			look = t.pagemap.Existing
		}
		found := func(ranges []kernel.PageRange) error {
			for _, r := range ranges {
				if r.Categories&kernel.PageZero == 0 {
					pages += (r.End - r.Start) / uint64(PageSize())
				}
			}
			return nil
		}
		at, err := scan(m.Start, m.End, look, found)
		if errors.Is(err, unix.EPERM) { // a new mapping
			_, err = scan(at, m.End, t.pagemap.Existing, found)
		}
		if err != nil {
			return pages, err
		}
	}
	return pages, nil
}

// remember reads some pages of untracked memory, and some of all other memory.
func (w *Watcher) remember() error {
	untracked := func(t *task) bool { return t.tracking != WriteProtect }
	known, bytes, err := w.choose(watchedPages, 1, true, untracked)
	if err != nil {
		return err
	}
	like, _, err := w.choose(likePages, 1, false, func(t *task) bool { return !untracked(t) })
	if err != nil {
		return err
	}
	w.known, w.whole, w.like = w.readAll(known), bytes, w.readAll(like)
	return nil
}

func (w *Watcher) readAll(spots []spot) []spot {
	var all []spot
	for _, s := range spots {
		if w.read(&s) {
			all = append(all, s)
		}
	}
	return all
}

// compare adds what was written to untracked memory.
func (w *Watcher) compare(all *Written) {
	all.Compared = w.whole
	now, written, changed := w.look(w.known)
	if now > 0 {
		all.Bytes += w.whole * float64(written) / float64(now)
	}
	_, others, more := w.look(w.like)
	if written += others; written > 0 {
		all.Changed = float64(changed+more) / float64(written*PageSize())
	}
}

// look reads pages again. It returns how many exist now, how many of these have changed, and how many bytes
// differ.
func (w *Watcher) look(spots []spot) (now, written, changed int) {
	for _, s := range spots {
		old := s.content
		s.content = nil
		if !w.read(&s) {
			continue
		}
		now++
		if n := differing(old, s.content); n > 0 {
			written++
			changed += n
		}
	}
	return now, written, changed
}

// differing counts the bytes of differing words.
func differing(a, b []byte) (bytes int) {
	const word = 8
	for i := 0; i+word <= len(a) && i+word <= len(b); i += word {
		if string(a[i:i+word]) != string(b[i:i+word]) {
			bytes += word
		}
	}
	return bytes
}

// read reads the content of a spot. It returns false for a page that is gone.
func (w *Watcher) read(p *spot) bool {
	size := uint64(PageSize())
	pages := max(1, uint64(len(p.content))/size)
	p.content = make([]byte, pages*size)
	n, err := p.task.read([]kernel.PageRange{{Start: p.address, End: p.address + pages*size}}, p.content)
	return err == nil && n == len(p.content)
}

// choose selects n spots of some pages each, at random, from memory that processes share without a file, if
// wanted, and from that of the wanted processes. It also returns the size of that memory. Swapped-out pages
// stay swapped out.
func (w *Watcher) choose(n, pages int, shared bool, wanted func(*task) bool) (spots []spot, bytes float64,
	err error) {
	type found struct {
		task *task
		at   kernel.PageRange
	}
	var all []found
	var total uint64
	for _, t := range w.source.tasks.inOrder() {
		err := w.eachRange(t, shared, wanted(t), func(r kernel.PageRange) {
			all = append(all, found{t, r})
			total += (r.End - r.Start) / uint64(PageSize())
		})
		if ignoreGone(err) != nil {
			return nil, 0, err
		}
	}
	if total == 0 {
		return nil, 0, nil
	}
	// Places in the order of addresses, so that one pass finds them: one in each of equal parts.
	each := max(1, total/uint64(n))
	next, passed := w.chance.Uint64N(each), uint64(0)
	for _, f := range all {
		length := (f.at.End - f.at.Start) / uint64(PageSize())
		for next < passed+length {
			count := min(uint64(pages), passed+length-next)
			spots = append(spots, spot{task: f.task, address: f.at.Start + (next-passed)*uint64(PageSize()),
				content: make([]byte, count*uint64(PageSize()))})
			next = next/each*each + each + w.chance.Uint64N(each)
		}
		passed += length
	}
	return spots, float64(total) * float64(PageSize()), nil
}

// eachRange calls found for the pages of a process that are in memory: of shared memory, and of its own, if
// wanted.
func (w *Watcher) eachRange(t *task, shared, own bool, found func(kernel.PageRange)) error {
	if err := t.pagemap.Reopen(t.space); err != nil {
		return err
	}
	mappings, err := t.space.Mappings()
	if err != nil {
		return err
	}
	areas := slices.DeleteFunc(mappings, func(m kernel.Mapping) bool {
		_, anonymous, memfd := kernel.SharedName(m.Name)
		return !shared || !m.Shared || !anonymous && !memfd
	})
	if own {
		lazy, err := t.lazyAreas()
		if err != nil {
			return err
		}
		for _, m := range lazy {
			areas = append(areas, m.Mapping)
		}
	}
	for _, m := range areas {
		_, err := scan(m.Start, m.End, t.pagemap.Existing, func(ranges []kernel.PageRange) error {
			for _, r := range ranges {
				if r.Categories&(kernel.PageZero|kernel.PageSwapped) == 0 {
					found(r)
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Close stops watching, and leaves nothing in the processes.
func (w *Watcher) Close() error { return w.source.Close() }
