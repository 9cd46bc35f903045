package memory

import (
	"errors"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// Shared memory need not be compared in the freeze if nobody can have written to it since it was read. All
// mappings of it are write-protected before that, so
//
//   - who writes by way of a mapping has a page fault, by way of a new mapping or a duplicate too, and the
//     kernel counts the faults of each process. A mark of the page itself would not do: it goes when the
//     mapping lets go of the page (madvise(2));
//   - a process that began, even if it has ended, has taken a number of its pid namespace;
//   - who writes, punches or cuts by a system call changes its times;
//   - for devices that write to it there are descriptors or contexts (directIO).
//
// The counts are taken first, before the processes and mappings are listed: a process that appears in
// between is either listed or counted.

// watch is what was recorded about an object when all its mappings were write-protected, before it was
// read.
type watch struct {
	mappings map[place]*task
	info     unix.Stat_t
	stable   bool // its times are so old that a change would show
}

// vantage is what was recorded about the container at the same time.
type vantage struct {
	next   int // number of a process
	faults map[int]uint64
	failed error
}

// timesStable is how much older than now times must be so that the next change gives different ones: a few
// ticks of the kernel's clock.
const timesStable = 50 * time.Millisecond

// watchAll starts watching all objects.
func (s *sharing) watchAll() {
	for _, o := range s.objects {
		o.watch = o.protect()
	}
}

// vantage records the values that reveal unseen writers.
func (s *tasks) vantage() vantage {
	v := vantage{faults: map[int]uint64{}}
	var oldest *task
	for pid, t := range s.all {
		faults, err := kernel.ReadFaults(pid)
		v.faults[pid], v.failed = faults, errors.Join(v.failed, err)
		if oldest == nil || t.started < oldest.started || t.started == oldest.started && pid < oldest.pid {
			oldest = t
		}
	}
	if oldest == nil {
		v.failed = errors.New("there is no process")
		return v
	}
	var err error
	// the container's first process: all others have numbers in its namespace
	v.next, err = kernel.NextPID(oldest.pid)
	v.failed = errors.Join(v.failed, err)
	return v
}

// unseen reports why there may have been writers since the last round that nobody has seen; empty if there
// were none. The processes are frozen.
func (s *sharing) unseen() string {
	before, now := s.watched, s.frozen
	switch {
	case !s.looked:
		return "the mappings were not compared in the freeze"
	case before.failed != nil || now.failed != nil:
		return "the comparison of mappings failed"
	case now.next != before.next+1:
		return "processes or threads were started"
	case !maps.Equal(before.faults, now.faults):
		return "processes have run and may have written to it"
	case s.tasks.directIO():
		return "devices may write to it"
	default:
		return ""
	}
}

// protect write-protects all mappings of an object that has not been read yet. Nil: that is impossible for
// some of them.
func (o *object) protect() *watch {
	w := &watch{mappings: o.found.mappings}
	for at, t := range o.found.mappings {
		if !at.mapping.Shared {
			continue // what is written there stays there
		}
		by, ok := t.tracker.(*armed)
		if !ok {
			return nil
		}
		if by.protectShared(t.pagemap, at.mapping) != nil {
			return nil
		}
	}
	if err := unix.Fstat(int(o.file.Fd()), &w.info); err != nil {
		return nil
	}
	changed := time.Unix(w.info.Ctim.Unix())
	if modified := time.Unix(w.info.Mtim.Unix()); modified.After(changed) {
		changed = modified
	}
	w.stable = time.Since(changed) > timesStable
	return w
}

// protectShared makes the next write to each page of a mapping a page fault.
func (a *armed) protectShared(pagemap *kernel.Pagemap, m kernel.Mapping) error {
	ignore := func([]kernel.PageRange) error { return nil }
	_, err := scan(m.Start, m.End, pagemap.Written, ignore)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	err = a.protect.Register(m.Start, m.End)
	if errors.Is(err, unix.EPERM) && !m.Writable {
		return nil // it can never be written: its file was opened for reading, or sealed
	}
	if err != nil {
		return err
	}
	_, err = scan(m.Start, m.End, pagemap.Written, ignore) // all of it
	return err
}

// touched reports why an object may have been written to since the last round although no process had a
// page fault; empty if it was not. The processes are frozen.
func (o *object) touched(device uint64) string {
	w := o.watch
	switch {
	case w == nil:
		return "not all of its mappings can be watched"
	case !w.stable:
		return "it is new, or was written by system calls"
	case !maps.Equal(w.mappings, o.found.mappings):
		return "mappings of it have changed"
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(o.file.Fd()), &info); err != nil || info.Dev != device ||
		info.Ctim != w.info.Ctim || info.Mtim != w.info.Mtim || info.Size != w.info.Size {
		return "it was written by system calls"
	}
	return ""
}
