package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A scan compares a tree with its manifest, in parallel, and writes down where they differ. It
// opens directories by their path from the root, so that none waits for another. A directory that
// is certainly the same is not listed, but each of its names is asked for.
type scan struct {
	dir      string   // for files without names
	parallel int      // goroutines
	since    *instant // the beginning of the round
	tree     *scanTree
	shallow  bool // looks at directories only, and is trusting
	trusting bool // believes what stat says also of files that were not settled, for nobody has written since
	believed bool // stamps tell something: nobody has set the clock back

	plan       *spool
	entries    atomic.Int64
	arrived    arrivals
	candidates candidates
	removes    atomic.Bool // something is to be removed, or parked, before anything is made
	unknown    atomic.Bool // a shallow scan met a new name of a file that has others, which it has not seen
	workers    []scanWorker
}

// scanTree is a tree that is compared with its manifest.
type scanTree struct {
	Tree
	root     int
	clock    fileClock
	manifest *spool // nil: the mirror has nothing
	links    *linkTable
}

// scanWorker is what one goroutine of a scan has for itself.
type scanWorker struct {
	listing []byte
	out     []byte
	found   difference
}

// scanPart is a frame of a manifest, or, where a directory has many new names, a piece of one.
type scanPart struct {
	frame
	path   string
	long   bool    // one of several frames of a directory, which was opened for all of them
	listed bool    // then names are those that the directory has, in the range of the entries
	names  []found // only if listed
	dir    *openDir
	stat   unix.Stat_t // of dir, if that is not nil
}

// scanJob is for one worker.
type scanJob struct {
	parts []scanPart
	size  int
	out   *spool
}

// run does the scan.
func (s *scan) run(ctx context.Context) error {
	s.plan = newSpool(s.dir)
	s.workers = make([]scanWorker, s.parallel)
	p := pipeline[*scanJob]{
		workers: len(s.workers), depth: 4 * len(s.workers),
		feed:  s.feed,
		work:  func(worker int, job *scanJob) error { return s.job(&s.workers[worker], job) },
		drain: s.collect,
		drop:  (*scanJob).close,
	}
	return p.run(ctx)
}

func (j *scanJob) close() {
	for i := range j.parts {
		j.parts[i].dir.done()
	}
	if j.out != nil {
		j.out.close()
	}
}

func (s *scan) close() {
	if s.plan != nil {
		s.plan.close()
	}
}

// equal reports whether the scan has found no difference.
func (s *scan) equal() bool { return s.plan.size() == 0 }

func (s *scan) collect(job *scanJob) error {
	defer job.close()
	if job.out == nil {
		return nil
	}
	in := job.out.reader(0, job.out.size())
	for left := in.end; left > 0; {
		p, err := in.next(int(min(left, 64<<10)))
		if err != nil {
			return err
		}
		if _, err := s.plan.append(p); err != nil {
			return err
		}
		left -= int64(len(p))
	}
	return nil
}

// feed reads the manifest.
func (s *scan) feed(put func(*scanJob) error) error {
	const enough = 32 << 10 // bytes of the manifest, about 250 names
	in := s.tree.manifest.frames()
	way := newWay()
	job := &scanJob{}
	defer func() { job.close() }()
	for {
		var part scanPart
		err := in.next(&part.frame)
		if errors.Is(err, io.EOF) {
			last := job
			job = &scanJob{}
			return put(last)
		}
		if err != nil {
			return err
		}
		part.path = way.to(&part.frame)
		if part.first && !part.last {
			full := job // what is found is in the order of the manifest
			job = &scanJob{}
			if err := put(full); err != nil {
				return err
			}
			if err := s.feedLong(in, &part, put); err != nil {
				return err
			}
			continue
		}
		part.entries = bytes.Clone(part.entries)
		job.parts = append(job.parts, part)
		if job.size += len(part.entries) + len(part.path) + 256; job.size >= enough {
			full := job
			job = &scanJob{}
			if err := put(full); err != nil {
				return err
			}
		}
	}
}

// feedLong reads the frames of a directory that has several, and lists it, if need be, for all of them.
func (s *scan) feedLong(in *frames, part *scanPart, put func(*scanJob) error) error {
	fd, err := openBelow(s.tree.root, part.path)
	if err != nil && !moved(err) {
		return fmt.Errorf("%q: %w", part.path, err)
	}
	var (
		names *sortedNames
		dir   *openDir
	)
	defer func() { dir.done() }()
	if err == nil {
		dir = newOpenDir(fd)
		if err := unix.Fstat(fd, &part.stat); err != nil {
			return err
		}
		if names, err = s.list(part, fd, make([]byte, listingBuffer)); err != nil {
			return err
		}
	}
	if names != nil {
		defer names.close()
	}
	for {
		part.long = true
		part.entries = bytes.Clone(part.entries)
		emit := func(piece scanPart) error {
			piece.dir = dir.use()
			return put(&scanJob{parts: []scanPart{piece}})
		}
		if err := split(part, names, emit); err != nil || part.last {
			return err
		}
		next := scanPart{path: part.path, stat: part.stat}
		if err := in.next(&next.frame); err != nil {
			return err
		}
		*part = next
	}
}

// list returns the names of a directory, or nil if they are certainly those of the manifest.
func (s *scan) list(part *scanPart, fd int, buffer []byte) (*sortedNames, error) {
	now := stampOf(&part.stat)
	if part.self.settled && s.believed && now.sameBut(&part.self.stamp) {
		return nil, nil
	}
	names, err := listSorted(fd, s.dir, buffer)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", part.path, err)
	}
	return names, nil
}

// split hands on a part with the names that are in its range, in pieces of a bounded number of names.
func split(part *scanPart, names *sortedNames, emit func(scanPart) error) error {
	if names == nil {
		return emit(*part)
	}
	const most = 4096
	piece := *part
	piece.listed = true
	entries := knownReader{part.entries}
	start := 0
	give := func(end int, more bool) error {
		piece.entries = part.entries[start:end]
		if err := emit(piece); err != nil || !more {
			return err
		}
		start = end
		piece.first, piece.names = false, nil
		return nil
	}
	var entry known
	_, ok := entries.next(&entry)
	before := 0 // end of the entries that are less than the present one
	for {
		name, more := names.peek()
		if !more || !ok && !part.last {
			return give(len(part.entries), false)
		}
		if ok && entry.name < name.name {
			before = len(part.entries) - len(entries.unread)
			_, ok = entries.next(&entry)
			continue
		}
		piece.names = append(piece.names, name)
		if err := names.skip(); err != nil {
			return err
		}
		if ok && entry.name == name.name {
			before = len(part.entries) - len(entries.unread)
			_, ok = entries.next(&entry)
		}
		if len(piece.names) >= most {
			if err := give(before, true); err != nil {
				return err
			}
		}
	}
}
