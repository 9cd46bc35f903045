package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// task is a process whose memory is moved.
type task struct {
	id       Task
	pid      int
	name     string
	started  uint64
	space    *kernel.AddressSpace
	pagemap  *kernel.Pagemap
	reader   *kernel.MemoryReader
	tracker  tracker
	tracking Tracking // what tracker is
	refused  error    // why it is not tracked in the requested way; nil if it is
	tries    int      // how often that was tried
	stale    bool     // it has other memory than the tracker knows
	pages
	scanned bool // all of its memory was scanned since it is tracked
	carried bool // content of it was sent since it is tracked
	hectic  bool // it writes so much that no order of its pages helps
	direct  directIO
	shares  bool // it shares some pages with other processes, copy-on-write

	frozen bool              // in the last round
	locked *[]kernel.Mapping // while it is frozen; nil: not known
}

// pages says which pages of a task are where.
type pages struct {
	sent   pageset.Set // pages that were sent, or are remote
	held   pageset.Set // since the freeze: pages with content; nil while it runs
	remote pageset.Set // of those in sent: pages left at the source, whose present content the target lacks
	hot    pageset.Set // recently written pages: the remote ones count
	along  pageset.Set // pages that were written in the last round before they left in it

	heldAreas []area // areas searched for held
}

// openTask opens a process. It returns nil for a process without memory: a zombie, or an ended one.
func openTask(pid int) (*task, error) {
	process, err := kernel.ReadProcess(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t := &task{id: Task(process.NamespaceID), pid: pid, name: process.Name, started: process.StartTicks,
		pages: pages{sent: pageset.Set{}, remote: pageset.Set{}, hot: pageset.Set{}}}
	if process.State == 'Z' && process.Threads <= 1 {
		return nil, nil
	}
	if t.space, err = kernel.OpenAddressSpace(pid); err != nil {
		return nil, ignoreGone(err)
	}
	if t.pagemap, err = t.space.OpenPagemap(); err != nil {
		return nil, errors.Join(ignoreGone(err), t.space.Close())
	}
	t.reader = t.space.Reader()
	return t, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (t *task) close() error {
	var err error
	if t.tracker != nil {
		err = t.tracker.close()
	}
	return errors.Join(err, t.reader.Close(), t.pagemap.Close(), t.space.Close())
}

// track replaces the tracker; all pages count as written and none as sent.
func (t *task) track(way Tracking, by tracker) error {
	var err error
	if t.tracker != nil {
		err = t.tracker.close()
	}
	t.tracker, t.tracking, t.sent, t.held, t.stale = by, way, pageset.Set{}, nil, false
	t.remote, t.hot, t.along = pageset.Set{}, pageset.Set{}, nil
	t.scanned, t.carried, t.hectic = false, false, false
	return err
}

// area is a mapping whose pages Godwit carries, with the addresses around it up to the next mappings of
// another kind.
type area struct {
	kernel.Mapping
	low, high uint64
}

// lazyAreas lists the mappings whose pages Godwit carries: those that CRIU restores lazily
// (criu/pie/restorer.c, vma_can_be_lazy: private, anonymous, not locked, not of huge pages, not of
// the kernel). For everything else the pages are in CRIU's images.
func (t *task) lazyAreas() ([]area, error) {
	all, err := t.space.Mappings()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	locked, err := t.lockedAreas()
	if err != nil {
		return nil, ignoreGone(err)
	}
	return selectLazy(all, locked), nil
}

// lockedAreas lists the locked mappings. They stay the same while a process is frozen, and finding them
// takes a walk of its page tables, so they are searched once.
func (t *task) lockedAreas() ([]kernel.Mapping, error) {
	if t.frozen && t.locked != nil {
		return *t.locked, nil
	}
	locked, err := t.space.Locked()
	if err != nil {
		return nil, err
	}
	t.locked = &locked
	return locked, nil
}

// setFrozen sets whether the process is frozen from now on.
func (t *task) setFrozen(frozen bool) {
	if !frozen || !t.frozen {
		t.locked = nil
	}
	t.frozen = frozen
}

// lowestAddress is the least that vm.mmap_min_addr is set to in practice, and below which nothing is mapped.
const lowestAddress = 64 << 10

func selectLazy(all, locked []kernel.Mapping) []area {
	var lazy []area
	low, first := uint64(lowestAddress), 0 // first: index of the first lazy one after the last other
	for _, m := range all {
		for len(locked) > 0 && locked[0].End <= m.Start {
			locked = locked[1:]
		}
		isLocked := len(locked) > 0 && locked[0].Start < m.End
		if !isLocked && !m.Shared && !m.File && !strings.HasPrefix(m.Name, "[v") && m.Name != "[uprobes]" &&
			m.Name != "[sigpage]" {
			lazy = append(lazy, area{m, min(low, m.Start), m.End})
			continue
		}
		for ; first < len(lazy) && m.Start < maxAddress; first++ { // [vsyscall] is beyond
			lazy[first].high = m.Start
		}
		low, first = m.End, len(lazy)
	}
	for i := first; i < len(lazy); i++ {
		lazy[i].high = lazy[len(lazy)-1].End
	}
	return lazy
}

func (t *task) describe(err error) error {
	return fmt.Errorf("process %d (%s): %w", t.pid, t.name, err)
}
