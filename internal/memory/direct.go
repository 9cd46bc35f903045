package memory

import (
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// A device writes to the memory of a process (O_DIRECT, AIO) unnoticed: the kernel reports the pages as
// written when the transfer begins, and reports nothing when the data comes. A scan between the two
// considers them read.
const (
	// directWindow is how long a transfer may take: pages that were read again after that are not read once
	// more.
	directWindow = 10 * time.Second
	// directShare is the ratio of the pause between two checks of the descriptors to the duration of a
	// check, because a process may have many. Earlier reports are remembered, but a file that is open for a
	// shorter time goes unnoticed.
	directShare = 20
	// directBucket is the precision with which times are remembered.
	directBucket = time.Second
)

// directIO remembers which pages of a process were recently reported as written. If the process has
// descriptors for direct transfers, each round reads these pages again, and sends them if they have
// changed. It continues until a round that began after the end of the transfer has done so, however long
// ago that is.
type directIO struct {
	used   bool      // the process has such descriptors, or had them
	look   time.Time // when to check the descriptors again
	known  *hashing
	round  pageset.Set // reported in this round
	recent []reported
	due    pageset.Set // reported longer ago, and read again in this round for the last time…
	later  pageset.Set // …and in the next round: this one began too early
}

// reported are pages that were reported at about the same time.
type reported struct {
	first, last time.Time
	pages       pageset.Set
}

// begin starts a round.
func (d *directIO) begin(at time.Time) {
	d.round, d.due, d.later = pageset.Set{}, d.later, pageset.Set{}
	d.recent = age(d.recent, at, d.due)
}

func (d *directIO) note(ranges []kernel.PageRange, at time.Time) {
	last := len(d.recent) - 1
	if last < 0 || at.Sub(d.recent[last].first) > directBucket {
		d.recent = append(age(d.recent, at, d.later), reported{first: at, pages: pageset.Set{}})
		last = len(d.recent) - 1
	}
	d.recent[last].last = at
	for _, r := range ranges {
		d.round.Add(r.Start, r.End)
		d.recent[last].pages.Add(r.Start, r.End)
	}
}

// age moves reports so old that no transfer of that time is still running into a set, and returns the rest.
func age(all []reported, at time.Time, over pageset.Set) []reported {
	for len(all) > 0 && at.Sub(all[0].last) > directWindow {
		over.Merge(all[0].pages)
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

// use records that the process has such descriptors.
func (d *directIO) use() {
	if !d.used {
		d.used, d.known = true, newHashing()
	}
}

// remember records what is sent of a process with such descriptors.
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
	union := pageset.Set{}
	sets := []pageset.Set{d.due, d.later}
	for _, r := range d.recent {
		sets = append(sets, r.pages)
	}
	for _, pages := range sets {
		if err := pages.In(m.Start, m.End, true, func(one kernel.PageRange) error {
			union.Add(one.Start, one.End)
			return nil
		}); err != nil {
			return err
		}
	}
	return union.In(m.Start, m.End, true, func(one kernel.PageRange) error {
		return d.round.In(one.Start, one.End, false, found)
	})
}
