package memory

import (
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// A device that writes to the memory of a process (O_DIRECT, AIO) does it unseen: the kernel reports the pages as written
// when the transfer begins, and nothing when the data comes. A scan between the two takes them for read.
const (
	// directWindow is how long a transfer may be under way: pages that were reported longer ago are not read again.
	directWindow = 10 * time.Second
	// directShare is how many times as long as a look at the descriptors takes is waited until the next; a process may have
	// many. What was reported before is remembered, but a file that is open for a shorter time is not seen.
	directShare = 20
	// directBucket is how exactly the time is remembered.
	directBucket = time.Second
)

// directIO remembers which pages of a process were reported as written lately. If it has descriptors for direct transfers
// those pages are read again in each round, and sent again if they have changed.
type directIO struct {
	used    bool      // the process has such descriptors, or had
	look    time.Time // at the descriptors again
	known   *hashing
	now     pageSet // reported in this round
	recent  []reported
	current time.Time // when this round began
	noted   time.Time // when something was reported last: a round may take far longer than a transfer
}

// reported are pages that were reported at about the same time.
type reported struct {
	first, last time.Time
	pages       pageSet
}

// begin starts a round.
func (d *directIO) begin(at time.Time) {
	if len(d.now) > 0 {
		last := len(d.recent) - 1
		if last < 0 || d.current.Sub(d.recent[last].first) > directBucket {
			d.recent = append(d.recent, reported{first: d.current, pages: pageSet{}})
			last++
		}
		d.recent[last].last = d.noted
		d.recent[last].pages.merge(d.now)
	}
	for len(d.recent) > 0 && at.Sub(d.recent[0].last) > directWindow {
		d.recent = d.recent[1:]
	}
	d.now, d.current = pageSet{}, at
}

func (d *directIO) note(ranges []kernel.PageRange, at time.Time) {
	d.noted = at
	for _, r := range ranges {
		d.now.add(r.Start, r.End)
	}
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
	for _, r := range d.recent {
		if err := r.pages.in(m.Start, m.End, true, func(one kernel.PageRange) error {
			union.add(one.Start, one.End)
			return nil
		}); err != nil {
			return err
		}
	}
	return union.in(m.Start, m.End, true, func(one kernel.PageRange) error {
		return d.now.in(one.Start, one.End, false, found)
	})
}
