package copies

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
	"github.com/godwit/godwit/internal/files/ordered"
	"github.com/godwit/godwit/internal/files/records"
)

// copier brings the mirror of one tree up to date, in one round. A feeder makes jobs in the order
// of the manifest, workers read files in parallel, and emit sends what they have read and writes
// the new manifest.
type copier struct {
	source *Source
	tree   *sourceTree
	ctx    context.Context
	out    *records.RoundWriter

	readers []*fileReader   // of the workers; the last one is emit's
	spare   chan []byte     // for what workers make
	fresh   *manifest.Spool // the new manifest
	writer  manifest.FrameWriter

	believed bool // stamps tell something: nobody has set the clock back

	inside bool   // the stream is in the tree
	at     string // in which directory of it

	// Of the present part of a directory.
	old     manifest.KnownReader
	oldNext manifest.Known
	oldRaw  []byte
	oldMore bool

	arrived  map[manifest.Inode]bool // files with new names
	moved    map[manifest.Inode]bool // those of them that are parked
	away     map[pathSum]bool        // names from which such files were parked
	waiting  []manifest.Inode        // that wait for a place
	nameless []manifest.Inode        // that have no name at the mirror any more
}

// first sends a tree of which the mirror has nothing.
func (c *copier) first() error {
	return c.run(func(f *feeder) error { return f.grow("", "", 0) })
}

// again sends what a scan has found.
func (c *copier) again(found *compare.Scan) error {
	c.arrived, c.away = found.Arrived.Inodes, make(map[pathSum]bool)
	c.moved = make(map[manifest.Inode]bool)
	if found.Removes.Load() {
		if err := c.clear(found); err != nil {
			return err
		}
	}
	return c.run(func(f *feeder) error { return f.again(found) })
}

func (c *copier) run(feed func(*feeder) error) error {
	c.fresh = manifest.NewSpool(c.source.config.Dir)
	c.writer.Out = c.fresh
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
	p := ordered.Pipeline[*copyJob]{
		Workers: workers, Depth: depth,
		Feed: func(put func(*copyJob) error) error {
			f := &feeder{c: c, put: put, listing: make([]byte, fsys.ListingBuffer)}
			defer f.close()
			return feed(f)
		},
		Work:  func(worker int, job *copyJob) error { return c.work(c.readers[worker], job) },
		Drain: c.emit,
		Drop:  (*copyJob).close,
	}
	err := p.Run(c.ctx)
	if err == nil {
		err = c.finish()
	}
	for _, r := range c.readers {
		c.source.stats.ReadBytes += r.read
	}
	if err != nil {
		c.fresh.Close()
		return err
	}
	if c.tree.Manifest != nil {
		c.tree.Manifest.Close()
	}
	c.tree.Manifest = c.fresh
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
	return c.out.Up()
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
				return fmt.Errorf("%q: %w", manifest.Joined(job.path, job.wants[i].Name), err)
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
		if err := unix.Fstat(job.dir.Fd, &d.stat); err != nil {
			return err
		}
	}
	d.entry = fsys.Describe(job.frame.Name, &d.stat)
	if err := r.xattrs.Complete(&d.entry, job.dir.Fd); err != nil {
		return fmt.Errorf("%q: %w", job.path, err)
	}
	now, attrs := manifest.StampOf(&d.stat), r.attrs(&d.entry)
	switch {
	case d.made:
		d.known = manifest.Self{Stamp: now, Settled: c.source.since.Settled(&c.tree.Tree, &d.stat, ""),
			Attrs: attrs}
	case now.SameBut(&d.known.Stamp):
		d.sends = attrs != d.known.Attrs
		d.known = manifest.Self{Stamp: now, Settled: d.quiet, Attrs: attrs}
	default: // it was changed after it was listed: the next round lists it again
		d.sends = attrs != d.known.Attrs
		d.known = manifest.Self{Stamp: d.known.Stamp, Attrs: attrs}
	}
	return nil
}

// file reads a file and makes its records, unless only emit can do that.
func (c *copier) file(r *fileReader, job *copyJob, i int) error {
	w, res := &job.wants[i], &job.results[i]
	if w.Kind == compare.DeltaGone || w.Mode == unix.DT_DIR {
		return nil
	}
	if job.dir == nil {
		res.lost = true
		return nil
	}
	if w.Links > 1 || w.Other && c.wasParked(job.path, w) || w.old != nil && w.old.Links != 0 ||
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
	if s.stat.Nlink > 1 || c.moved[manifest.Inode{Device: s.stat.Dev, Number: s.stat.Ino}] || s.fd >= 0 &&
		s.entry.Size > inlineSize {
		res.deferred = true
		return nil
	}
	r.record.Scratch = job.out
	err = c.small(r, s, how{old: w.old}, res)
	job.out, r.record.Scratch = r.record.Scratch, nil
	return err
}

// open finds a file. That it cannot be read now is forgiven if the next round will look at it
// again: then the mirror keeps it as it was, for which nil is returned, or gets it without content.
func (c *copier) open(r *fileReader, job *copyJob, w *want) (*subject, error) {
	s, err := r.open(job.dir.Fd, w.Name, w.Mode)
	if !errors.Is(err, errLeased) || c.source.kind != records.LiveRound {
		return s, err
	}
	if w.old != nil && !c.wasParked(job.path, w) {
		return nil, nil
	}
	return r.leased(job.dir.Fd, w.Name)
}

// how says how a file's record begins.
type how struct {
	old    *manifest.Known // what the mirror has, whose attributes and content are changed; nil: nothing
	number uint64          // under which it is parked; 0: it has its name
}

// kept is how much of content that stays was there from an earlier copy.
func (h how) kept(bytes int64) int64 {
	if h.old == nil || !h.old.Adopted() {
		return 0
	}
	return bytes
}

// head makes the beginning of a record.
func (r *fileReader) head(entry *fsys.Entry, h how, content records.ContentKind) {
	switch {
	case h.old == nil:
		r.record.Kind(records.RecordOther)
		r.record.Entry(entry)
		return
	case h.number != 0:
		r.record.Kind(records.RecordPlace)
		r.record.Number(h.number)
	default:
		r.record.Kind(records.RecordChange)
	}
	r.record.Entry(entry)
	r.record.Scratch = append(r.record.Scratch, byte(content))
}

// small makes the record of a file whose content fits into memory, or of one that cannot be read
// yet: all of it is a hole until the next round.
func (c *copier) small(r *fileReader, s *subject, h how, res *result) error {
	if s.leased {
		res.known, res.entries = r.known(s, false), 1
		r.head(&s.entry, h, records.InPlace)
		r.record.Scratch = append(r.record.Scratch, byte(records.OpEnd))
		return nil
	}
	settled := c.source.since.Settled(&c.tree.Tree, &s.stat, s.entry.Name)
	var now manifest.Content
	switch {
	case s.fd < 0:
	case c.onlyRead(s, h):
		now = h.old.Content
	default:
		var err error
		now.Form = manifest.ContentDigest
		if now.Digest, res.data, err = r.inline(s); err != nil {
			if settled = false; !c.tolerates(err) {
				return err
			}
		}
	}
	res.known = r.known(s, settled)
	res.known.Content = now
	same := h.old != nil && h.old.Content == now && (s.fd >= 0 || h.old.Attrs == res.known.Attrs)
	if same && h.number == 0 && h.old.Attrs == res.known.Attrs {
		res.data = 0
		return nil
	}
	res.entries = 1
	switch {
	case s.fd < 0:
		if h.old != nil {
			r.record.Kind(records.RecordRemove)
			r.record.Text(s.entry.Name)
		}
		r.head(&s.entry, how{}, records.InPlace)
	case same:
		res.data, res.kept = 0, h.kept(min(s.entry.Size, s.entry.Stored))
		r.head(&s.entry, h, records.KeepContent)
	default:
		r.head(&s.entry, h, records.InPlace)
		r.record.Scratch = append(r.record.Scratch, r.ops.Scratch...)
	}
	return nil
}

// onlyRead reports whether certainly nothing but the access time of a file is different. Then its content
// is not read: a container that reads what it has would otherwise make its own freeze longer.
func (c *copier) onlyRead(s *subject, h how) bool {
	if h.old == nil || !h.old.Settled || !c.believed {
		return false
	}
	now := manifest.StampOf(&s.stat)
	return now.SameBut(&h.old.Stamp)
}

// tolerates reports whether an error is one of those that a later round makes good.
func (c *copier) tolerates(err error) bool {
	return c.source.kind == records.LiveRound && errors.Is(err, fsys.ErrShorter)
}
