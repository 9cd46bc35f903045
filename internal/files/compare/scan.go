package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
	"github.com/godwit/godwit/internal/files/ordered"
)

// Scan compares a tree with its manifest, in parallel, and writes down where they differ. It
// opens directories by their path from the root, so that none waits for another. A directory that
// is certainly the same is not listed, but each of its names is asked for.
type Scan struct {
	Dir      string   // for files without names
	Parallel int      // goroutines
	Since    *Instant // the beginning of the round
	Tree     *Tree
	Shallow  bool // looks at directories only, and is trusting
	Trusting bool // believes what stat says also of files that were not settled, for nobody has written since
	Believed bool // stamps tell something: nobody has set the clock back

	plan       *manifest.Spool
	Entries    atomic.Int64
	Arrived    arrivals
	Candidates candidates
	Removes    atomic.Bool // something is to be removed, or parked, before anything is made
	Unknown    atomic.Bool // a shallow scan met a new name of a file that has others, which it has not seen
	workers    []scanWorker
}

// Tree is a tree that is compared with its manifest.
type Tree struct {
	files.Tree
	Root     int
	Clock    FileClock
	Manifest *manifest.Spool // nil: the mirror has nothing
	Links    *manifest.LinkTable
}

// scanWorker is what one goroutine of a scan has for itself.
type scanWorker struct {
	listing []byte
	out     []byte
	found   difference
}

// scanPart is a frame of a manifest, or, where a directory has many new names, a piece of one.
type scanPart struct {
	manifest.Frame
	path   string
	long   bool             // one of several frames of a directory, which was opened for all of them
	listed bool             // then names are those that the directory has, in the range of the entries
	names  []manifest.Found // only if listed
	dir    *fsys.OpenDir
	stat   unix.Stat_t // of dir, if that is not nil
}

// scanJob is for one worker.
type scanJob struct {
	parts []scanPart
	size  int
	out   *manifest.Spool
}

// Run does the scan.
func (s *Scan) Run(ctx context.Context) error {
	s.plan = manifest.NewSpool(s.Dir)
	s.workers = make([]scanWorker, s.Parallel)
	p := ordered.Pipeline[*scanJob]{
		Workers: len(s.workers), Depth: 4 * len(s.workers),
		Feed:  s.feed,
		Work:  func(worker int, job *scanJob) error { return s.job(&s.workers[worker], job) },
		Drain: s.collect,
		Drop:  (*scanJob).close,
	}
	return p.Run(ctx)
}

func (j *scanJob) close() {
	for i := range j.parts {
		j.parts[i].dir.Done()
	}
	if j.out != nil {
		j.out.Close()
	}
}

// Close lets go of the plan of a scan that does not go on.
func (s *Scan) Close() {
	if s.plan != nil {
		s.plan.Close()
	}
}

// Equal reports whether the scan has found no difference.
func (s *Scan) Equal() bool { return s.plan.Size() == 0 }

func (s *Scan) collect(job *scanJob) error {
	defer job.close()
	if job.out == nil {
		return nil
	}
	in := job.out.Reader(0, job.out.Size())
	for left := in.End; left > 0; {
		p, err := in.Next(int(min(left, 64<<10)))
		if err != nil {
			return err
		}
		if _, err := s.plan.Append(p); err != nil {
			return err
		}
		left -= int64(len(p))
	}
	return nil
}

// feed reads the manifest.
func (s *Scan) feed(put func(*scanJob) error) error {
	const enough = 32 << 10 // bytes of the manifest, about 250 names
	in := s.Tree.Manifest.Frames()
	way := manifest.NewWay()
	job := &scanJob{}
	defer func() { job.close() }()
	for {
		var part scanPart
		err := in.Next(&part.Frame)
		if errors.Is(err, io.EOF) {
			last := job
			job = &scanJob{}
			return put(last)
		}
		if err != nil {
			return err
		}
		part.path = way.To(&part.Frame)
		if part.First && !part.Last {
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
		part.Entries = bytes.Clone(part.Entries)
		job.parts = append(job.parts, part)
		if job.size += len(part.Entries) + len(part.path) + 256; job.size >= enough {
			full := job
			job = &scanJob{}
			if err := put(full); err != nil {
				return err
			}
		}
	}
}

// feedLong reads the frames of a directory that has several, and lists it, if need be, for all of them.
func (s *Scan) feedLong(in *manifest.Frames, part *scanPart, put func(*scanJob) error) error {
	fd, err := fsys.OpenBelow(s.Tree.Root, part.path)
	if err != nil && !fsys.Moved(err) {
		return fmt.Errorf("%q: %w", part.path, err)
	}
	var (
		names *manifest.SortedNames
		dir   *fsys.OpenDir
	)
	defer func() { dir.Done() }()
	if err == nil {
		dir = fsys.NewOpenDir(fd)
		if err := unix.Fstat(fd, &part.stat); err != nil {
			return err
		}
		if names, err = s.list(part, fd, make([]byte, fsys.ListingBuffer)); err != nil {
			return err
		}
	}
	if names != nil {
		defer names.Close()
	}
	for {
		part.long = true
		part.Entries = bytes.Clone(part.Entries)
		emit := func(piece scanPart) error {
			piece.dir = dir.Use()
			return put(&scanJob{parts: []scanPart{piece}})
		}
		if err := split(part, names, emit); err != nil || part.Last {
			return err
		}
		next := scanPart{path: part.path, stat: part.stat}
		if err := in.Next(&next.Frame); err != nil {
			return err
		}
		*part = next
	}
}

// list returns the names of a directory, or nil if they are certainly those of the manifest.
func (s *Scan) list(part *scanPart, fd int, buffer []byte) (*manifest.SortedNames, error) {
	now := manifest.StampOf(&part.stat)
	if part.Self.Settled && s.Believed && now.SameBut(&part.Self.Stamp) {
		return nil, nil
	}
	names, err := manifest.ListSorted(fd, s.Dir, buffer)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", part.path, err)
	}
	return names, nil
}

// split hands on a part with the names that are in its range, in pieces of a bounded number of names.
func split(part *scanPart, names *manifest.SortedNames, emit func(scanPart) error) error {
	if names == nil {
		return emit(*part)
	}
	const most = 4096
	piece := *part
	piece.listed = true
	entries := manifest.KnownReader{Unread: part.Entries}
	start := 0
	give := func(end int, more bool) error {
		piece.Entries = part.Entries[start:end]
		if err := emit(piece); err != nil || !more {
			return err
		}
		start = end
		piece.First, piece.names = false, nil
		return nil
	}
	var entry manifest.Known
	_, ok := entries.Next(&entry)
	before := 0 // end of the entries that are less than the present one
	for {
		name, more := names.Peek()
		if !more || !ok && !part.Last {
			return give(len(part.Entries), false)
		}
		if ok && entry.Name < name.Name {
			before = len(part.Entries) - len(entries.Unread)
			_, ok = entries.Next(&entry)
			continue
		}
		piece.names = append(piece.names, name)
		if err := names.Skip(); err != nil {
			return err
		}
		if ok && entry.Name == name.Name {
			before = len(part.Entries) - len(entries.Unread)
			_, ok = entries.Next(&entry)
		}
		if len(piece.names) >= most {
			if err := give(before, true); err != nil {
				return err
			}
		}
	}
}
