package copies

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
)

// jobKind is the kind of a copy's job. Jobs are made in the order in which their records are sent.
type jobKind int

const (
	jobVerbatim  jobKind = iota // a piece of the old manifest stays valid
	jobDirectory                // a new directory
	jobPart                     // a part of a directory begins
	jobFiles                    // some of its names
	jobPartEnds                 //
	jobLeave                    // everything in the directory was sent
)

// copyJob is made by feed, done by a worker, and sent by emit.
type copyJob struct {
	kind       jobKind
	path       string // the directory's
	start, end int64  // of the old manifest
	frame      manifest.Frame
	dir        *fsys.OpenDir // nil: the directory could not be opened
	self       *directory
	wants      []want
	results    []result
	out        []byte // records of everything that the worker could do alone
}

func (j *copyJob) close() { j.dir.Done() }

// directory is a directory whose attributes are sent after everything in it.
type directory struct {
	made  bool // in this round
	stat  unix.Stat_t
	quiet bool // it was settled when it was listed
	entry fsys.Entry
	known manifest.Self
	sends bool // the mirror has other attributes
}

// want is a name to be examined.
type want struct {
	compare.Delta
	old *manifest.Known // what the mirror has, if of the same kind
}

// result is the result for a name.
type result struct {
	end      int    // of its records in the job's
	entries  int    // in these records
	data     uint64 // bytes of content
	kept     int64  // bytes of content that an earlier copy had left
	deferred bool   // only emit can do it
	lost     bool   // missing, or no longer the same
	known    manifest.Known
}

// maxPath is the maximum length of a directory's path from the root of its tree: 64 times what the kernel
// accepts at once. Each job in progress has one.
const maxPath = 256 << 10

// batch bounds the size of one job.
const (
	batchNames = 64
	batchBytes = 256 << 10
)

// feeder makes the jobs of a tree.
type feeder struct {
	c        *copier
	put      func(*copyJob) error
	listing  []byte
	at       string // the directory that was opened last
	atDir    *fsys.OpenDir
	verbatim copyJob
}

func (f *feeder) close() { f.atDir.Done() }

// open opens a directory of the tree, starting from the one that was opened last if possible. It returns
// nil if the directory does not exist. The caller need not release it.
func (f *feeder) open(path string) (*fsys.OpenDir, error) {
	root, rest := f.c.tree.Root, path
	if f.atDir != nil && len(path) > len(f.at) && path[:len(f.at)] == f.at &&
		(f.at == "" || path[len(f.at)] == '/') {
		root, rest = f.atDir.Fd, path[len(f.at):]
		if rest[0] == '/' {
			rest = rest[1:]
		}
	}
	fd, err := fsys.OpenBelow(root, rest)
	if fsys.Moved(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	f.atDir.Done()
	f.at, f.atDir = path, fsys.NewOpenDir(fd)
	return f.atDir, nil
}

// branch is a new directory with directories still to be sent.
type branch struct {
	path, name string
	children   *nameList
	self       *directory
}

// nameList is a list of names that may be long.
type nameList struct {
	spool *manifest.Spool
	in    *manifest.SpoolReader
}

func (l *nameList) add(dir, name string) error {
	if l.spool == nil {
		l.spool = manifest.NewSpool(dir)
	}
	_, err := l.spool.Append(append([]byte{byte(len(name))}, name...))
	return err
}

// next returns "" at the end.
func (l *nameList) next() (string, error) {
	if l.spool == nil {
		return "", nil
	}
	if l.in == nil {
		l.in = l.spool.Reader(0, l.spool.Size())
	}
	p, err := l.in.Next(1)
	if errors.Is(err, io.EOF) {
		return "", nil
	}
	if err == nil {
		p, err = l.in.Next(int(p[0]))
	}
	return string(p), err
}

func (l *nameList) close() {
	if l.spool != nil {
		l.spool.Close()
	}
}

// grow sends a directory that the mirror lacks, with everything in it.
func (f *feeder) grow(path, name string, depth int) error {
	var stack []branch
	defer func() {
		for _, l := range stack {
			l.children.close()
		}
	}()
	top, err := f.make(path, name, depth)
	if err != nil {
		return err
	}
	stack = append(stack, top)
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		name, err := top.children.next()
		if err != nil {
			return err
		}
		if name == "" {
			top.children.close()
			if err := f.put(&copyJob{kind: jobLeave, path: top.path, self: top.self}); err != nil {
				return err
			}
			stack = stack[:len(stack)-1]
			continue
		}
		next, err := f.make(manifest.Joined(top.path, name), name, depth+len(stack))
		if err != nil {
			return err
		}
		for i := range stack {
			stack[i].path = next.path[:len(stack[i].path)] // one string for all
		}
		stack = append(stack, next)
	}
	return nil
}

// make sends a new directory and its names, and returns its directories. A directory that no longer exists
// is sent as empty, because the manifest of its parent already has it. The next round removes it.
func (f *feeder) make(path, name string, depth int) (l branch, err error) {
	l = branch{path: path, name: name, children: &nameList{}, self: &directory{made: true, sends: true}}
	l.self.entry = fsys.Entry{Mode: unix.S_IFDIR | 0o700}
	if depth >= fsys.MaxDepth || len(path) > maxPath {
		return l, fmt.Errorf("%.100q...: directories are more than %d deep, or their path is longer than "+
			"%d bytes", path, fsys.MaxDepth, maxPath)
	}
	defer func() {
		if err != nil {
			l.children.close()
		}
	}()
	dir, err := f.open(path)
	if err == nil && dir == nil && path == "" {
		err = unix.ENOENT
	}
	if err != nil {
		return l, err
	}
	var names *manifest.SortedNames
	if dir != nil {
		if err := unix.Fstat(dir.Fd, &l.self.stat); err != nil {
			return l, err
		}
		if names, err = manifest.ListSorted(dir.Fd, f.c.source.config.Dir, f.listing); err != nil {
			return l, fmt.Errorf("%q: %w", path, err)
		}
		defer names.Close()
	}
	if err := f.put(&copyJob{kind: jobDirectory, path: path,
		frame: manifest.Frame{Depth: depth, Name: name, First: true, Last: true}, dir: dir.Use(),
		self: l.self}); err != nil {
		return l, err
	}
	if names != nil {
		if err := f.names(path, dir, names, l.children); err != nil {
			return l, err
		}
	}
	return l, f.put(&copyJob{kind: jobPartEnds, path: path})
}

// names sends all names of a new directory.
func (f *feeder) names(path string, dir *fsys.OpenDir, names *manifest.SortedNames,
	children *nameList) error {
	job := &copyJob{kind: jobFiles, path: path, dir: dir.Use()}
	defer func() { job.close() }()
	last := ""
	for {
		name, more := names.Peek()
		if !more {
			break
		}
		if err := names.Skip(); err != nil {
			return err
		}
		kind, err := manifest.TypeOf(dir.Fd, name)
		if err != nil {
			return fmt.Errorf("%q: %w", manifest.Joined(path, name.Name), err)
		}
		if kind == unix.DT_UNKNOWN || name.Name == last {
			continue
		}
		last = name.Name
		if job, err = f.want(job, children,
			want{Delta: compare.Delta{Kind: compare.DeltaNew, Name: name.Name, Mode: kind}}); err != nil {
			return err
		}
	}
	return f.flush(&job)
}

// want adds a name to a job, and puts the job when it is full.
func (f *feeder) want(job *copyJob, children *nameList, w want) (*copyJob, error) {
	if w.Mode == unix.DT_DIR && w.Kind != compare.DeltaGone {
		if err := children.add(f.c.source.config.Dir, w.Name); err != nil {
			return job, err
		}
	}
	job.wants = append(job.wants, w)
	if len(job.wants) < batchNames {
		return job, nil
	}
	full := job
	job = &copyJob{kind: jobFiles, path: full.path, dir: full.dir.Use()}
	return job, f.put(full)
}

// flush puts the last job.
func (f *feeder) flush(job **copyJob) error {
	if len((*job).wants) == 0 {
		return nil
	}
	full := *job
	*job = &copyJob{}
	return f.put(full)
}
