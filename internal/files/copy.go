package files

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// copier brings the mirror of one tree up to date, in one round. A feeder makes jobs in the order
// of the manifest, workers read files in parallel, and emit sends what they have read and writes
// the new manifest.
type copier struct {
	source *Source
	tree   *sourceTree
	ctx    context.Context
	out    *roundWriter

	readers []*fileReader // of the workers; the last one is emit's
	spare   chan []byte   // for what workers make
	fresh   *spool        // the new manifest
	writer  frameWriter

	believed bool // stamps tell something: nobody has set the clock back

	inside bool   // the stream is in the tree
	at     string // in which directory of it

	// Of the present part of a directory.
	old     knownReader
	oldNext known
	oldRaw  []byte
	oldMore bool

	arrived  map[inode]bool   // files with new names
	moved    map[inode]bool   // those of them that are parked
	away     map[pathSum]bool // names from which such files were parked
	waiting  []inode          // that wait for a place
	nameless []inode          // that have no name at the mirror any more
}

// first sends a tree of which the mirror has nothing.
func (c *copier) first() error {
	return c.run(func(f *feeder) error { return f.grow("", "", 0) })
}

// again sends what a scan has found.
func (c *copier) again(found *scan) error {
	c.arrived, c.away = found.arrived.inodes, make(map[pathSum]bool)
	c.moved = make(map[inode]bool)
	if found.removes.Load() {
		if err := c.clear(found); err != nil {
			return err
		}
	}
	return c.run(func(f *feeder) error { return f.again(found) })
}

func (c *copier) run(feed func(*feeder) error) error {
	c.fresh = newSpool(c.source.config.Dir)
	c.writer.out = c.fresh
	workers := c.source.config.Workers
	depth := 4 * workers
	c.spare = make(chan []byte, depth)
	for range workers + 1 {
		r, err := c.source.newFileReader()
		if err != nil {
			return err
		}
		r.block = c.tree.block
		c.readers = append(c.readers, r)
	}
	p := pipeline[*copyJob]{
		workers: workers, depth: depth,
		feed: func(put func(*copyJob) error) error {
			f := &feeder{c: c, put: put, listing: make([]byte, listingBuffer)}
			defer f.close()
			return feed(f)
		},
		work:  func(worker int, job *copyJob) error { return c.work(c.readers[worker], job) },
		drain: c.emit,
		drop:  (*copyJob).close,
	}
	err := p.run(c.ctx)
	if err == nil {
		err = c.finish()
	}
	for _, r := range c.readers {
		c.source.stats.ReadBytes += r.read
	}
	if err != nil {
		c.fresh.close()
		return err
	}
	if c.tree.manifest != nil {
		c.tree.manifest.close()
	}
	c.tree.manifest = c.fresh
	return nil
}

// finish leaves the tree.
func (c *copier) finish() error {
	if err := c.forgetUnused(); err != nil {
		return err
	}
	if !c.inside {
		return nil
	}
	if err := c.goTo(""); err != nil {
		return err
	}
	c.inside = false
	return c.out.up()
}

// work does what needs nobody else.
func (c *copier) work(r *fileReader, job *copyJob) error {
	switch job.kind {
	case jobDirectory, jobPart:
		return c.directory(r, job)
	case jobFiles:
		select {
		case job.out = <-c.spare:
		default:
		}
		job.results = make([]result, len(job.wants))
		for i := range job.wants {
			if err := c.file(r, job, i); err != nil {
				return fmt.Errorf("%q: %w", joined(job.path, job.wants[i].name), err)
			}
			job.results[i].end = len(job.out)
		}
	}
	return nil
}

// directory reads the attributes of one.
func (c *copier) directory(r *fileReader, job *copyJob) error {
	if job.self == nil || job.dir == nil {
		return nil
	}
	d := job.self
	if !d.made {
		if err := unix.Fstat(job.dir.fd, &d.stat); err != nil {
			return err
		}
	}
	d.entry = describe(job.frame.name, &d.stat)
	if err := r.xattrs.complete(&d.entry, job.dir.fd); err != nil {
		return fmt.Errorf("%q: %w", job.path, err)
	}
	now, attrs := stampOf(&d.stat), r.attrs(&d.entry)
	switch {
	case d.made:
		d.known = self{stamp: now, settled: c.source.since.settled(&c.tree.scanTree, &d.stat, ""), attrs: attrs}
	case now.sameBut(&d.known.stamp):
		d.sends = attrs != d.known.attrs
		d.known = self{stamp: now, settled: d.quiet, attrs: attrs}
	default: // it was changed after it was listed: the next round lists it again
		d.sends = attrs != d.known.attrs
		d.known = self{stamp: d.known.stamp, attrs: attrs}
	}
	return nil
}

// file reads a file and makes its records, unless only emit can do that.
func (c *copier) file(r *fileReader, job *copyJob, i int) error {
	w, res := &job.wants[i], &job.results[i]
	if w.kind == deltaGone || w.mode == unix.DT_DIR {
		return nil
	}
	if job.dir == nil {
		res.lost = true
		return nil
	}
	if w.links > 1 || w.other && c.wasParked(job.path, w) || w.old != nil && w.old.links != 0 ||
		len(job.out) > batchBytes {
		res.deferred = true
		return nil
	}
	s, err := c.open(r, job, w)
	if err != nil || s == nil {
		res.lost = s == nil
		return err
	}
	defer s.close()
	if s.stat.Nlink > 1 || c.moved[inode{s.stat.Dev, s.stat.Ino}] || s.fd >= 0 && s.entry.Size > inlineSize {
		res.deferred = true
		return nil
	}
	r.record.scratch = job.out
	err = c.small(r, s, how{old: w.old}, res)
	job.out, r.record.scratch = r.record.scratch, nil
	return err
}

// open finds a file. That it cannot be read now is forgiven if the next round will look at it
// again: then the mirror keeps it as it was, for which nil is returned, or gets it without content.
func (c *copier) open(r *fileReader, job *copyJob, w *want) (*subject, error) {
	s, err := r.open(job.dir.fd, w.name, w.mode)
	if !errors.Is(err, errLeased) || c.source.kind != liveRound {
		return s, err
	}
	if w.old != nil && !c.wasParked(job.path, w) {
		return nil, nil
	}
	return r.leased(job.dir.fd, w.name)
}

// how says how a file's record begins.
type how struct {
	old    *known // what the mirror has, whose attributes and content are changed; nil: nothing
	number uint64 // under which it is parked; 0: it has its name
}

// kept is how much of content that stays was there from an earlier copy.
func (h how) kept(bytes int64) int64 {
	if h.old == nil || !h.old.adopted() {
		return 0
	}
	return bytes
}

// head makes the beginning of a record.
func (r *fileReader) head(entry *Entry, h how, content contentKind) {
	switch {
	case h.old == nil:
		r.record.kind(recordOther)
		r.record.entry(entry)
		return
	case h.number != 0:
		r.record.kind(recordPlace)
		r.record.number(h.number)
	default:
		r.record.kind(recordChange)
	}
	r.record.entry(entry)
	r.record.scratch = append(r.record.scratch, byte(content))
}

// small makes the record of a file whose content fits into memory, or of one that cannot be read
// yet: all of it is a hole until the next round.
func (c *copier) small(r *fileReader, s *subject, h how, res *result) error {
	if s.leased {
		res.known, res.entries = r.known(s, false), 1
		r.head(&s.entry, h, inPlace)
		r.record.scratch = append(r.record.scratch, byte(opEnd))
		return nil
	}
	settled := c.source.since.settled(&c.tree.scanTree, &s.stat, s.entry.Name)
	var now content
	switch {
	case s.fd < 0:
	case c.onlyRead(s, h):
		now = h.old.content
	default:
		var err error
		now.form = contentDigest
		if now.digest, res.data, err = r.inline(s); err != nil {
			if settled = false; !c.tolerates(err) {
				return err
			}
		}
	}
	res.known = r.known(s, settled)
	res.known.content = now
	same := h.old != nil && h.old.content == now && (s.fd >= 0 || h.old.attrs == res.known.attrs)
	if same && h.number == 0 && h.old.attrs == res.known.attrs {
		res.data = 0
		return nil
	}
	res.entries = 1
	switch {
	case s.fd < 0:
		if h.old != nil {
			r.record.kind(recordRemove)
			r.record.text(s.entry.Name)
		}
		r.head(&s.entry, how{}, inPlace)
	case same:
		res.data, res.kept = 0, h.kept(min(s.entry.Size, s.entry.Stored))
		r.head(&s.entry, h, keepContent)
	default:
		r.head(&s.entry, h, inPlace)
		r.record.scratch = append(r.record.scratch, r.ops.scratch...)
	}
	return nil
}

// onlyRead reports whether certainly nothing but the access time of a file is different. Then its content
// is not read: a container that reads what it has would otherwise make its own freeze longer.
func (c *copier) onlyRead(s *subject, h how) bool {
	if h.old == nil || !h.old.settled || !c.believed {
		return false
	}
	now := stampOf(&s.stat)
	return now.sameBut(&h.old.stamp)
}

// tolerates reports whether an error is one of those that a later round makes good.
func (c *copier) tolerates(err error) bool {
	return c.source.kind == liveRound && errors.Is(err, errShorter)
}
