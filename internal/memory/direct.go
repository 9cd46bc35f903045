package memory

import (
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// A device that writes to the memory of a process (O_DIRECT, AIO) does it unseen: the kernel
// reports the pages as written when the transfer begins, and nothing when the data comes. A scan
// between the two takes them for read.
const (
	// directWindow is how long a transfer may be under way: pages that were read again after that
	// are not once more.
	directWindow = 10 * time.Second
	// directShare is how many times as long as a look at the descriptors takes is waited until the
	// next; a process may have many. What was reported before is remembered, but a file that is
	// open for a shorter time is not seen.
	directShare = 20
	// directBucket is how exactly the time is remembered.
	directBucket = time.Second
)

// directIO remembers which pages of a process were reported as written lately. If it has
// descriptors for direct transfers those pages are read again in each round, and sent again if they
// have changed: until a round that began when the transfer was over has done so, however long ago
// that is.
type directIO struct {
	used   bool      // the process has such descriptors, or had
	look   time.Time // at the descriptors again
	known  *hashing
	round  pageSet // reported in this round
	recent []reported
	due    pageSet // reported longer ago, and read again in this round for the last time…
	later  pageSet // …and in the next: this one began too early
}

// reported are pages that were reported at about the same time.
type reported struct {
	first, last time.Time
	pages       pageSet
}

// begin starts a round.
func (d *directIO) begin(at time.Time) {
	d.round, d.due, d.later = pageSet{}, d.later, pageSet{}
	d.recent = age(d.recent, at, d.due)
}

func (d *directIO) note(ranges []kernel.PageRange, at time.Time) {
	last := len(d.recent) - 1
	if last < 0 || at.Sub(d.recent[last].first) > directBucket {
		d.recent = append(age(d.recent, at, d.later), reported{first: at, pages: pageSet{}})
		last = len(d.recent) - 1
	}
	d.recent[last].last = at
	for _, r := range ranges {
		d.round.add(r.Start, r.End)
		d.recent[last].pages.add(r.Start, r.End)
	}
}

// age puts what was reported so long ago that no transfer of then is under way into a set, and
// returns the rest.
func age(all []reported, at time.Time, over pageSet) []reported {
	for len(all) > 0 && at.Sub(all[0].last) > directWindow {
		over.merge(all[0].pages)
		all = all[1:]
	}
	return all
}

// lookForDirectIO looks for such descriptors, now and then, and as soon as the process is frozen.
func (t *task) lookForDirectIO(frozen bool) error {
	now := time.Now()
	atFreeze := frozen && t.held == nil
	if t.direct.used || !atFreeze && now.Before(t.direct.look) {
		return nil
	}
	used, err := t.space.DirectIO()
	t.direct.look = now.Add(directShare * time.Since(now))
	if used {
		t.direct.use()
	}
	return ignoreGone(err)
}

// use says that the process has such descriptors.
func (d *directIO) use() {
	if !d.used {
		d.used, d.known = true, newHashing()
	}
}

// remember notes what is sent of a process that has such descriptors.
func (d *directIO) remember(address uint64, content []byte) {
	if d.used {
		d.known.changed(address, content)
	}
}

// again calls found for the pages of a mapping that were reported in earlier rounds and not in this one.
func (d *directIO) again(m area, found func(kernel.PageRange) error) error {
	if !d.used {
		return nil
	}
	union := pageSet{}
	sets := []pageSet{d.due, d.later}
	for _, r := range d.recent {
		sets = append(sets, r.pages)
	}
	for _, pages := range sets {
		if err := pages.in(m.Start, m.End, true, func(one kernel.PageRange) error {
			union.add(one.Start, one.End)
			return nil
		}); err != nil {
			return err
		}
	}
	return union.in(m.Start, m.End, true, func(one kernel.PageRange) error {
		return d.round.in(one.Start, one.End, false, found)
	})
}
