package files

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
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
	frame      frame
	dir        *openDir // nil: the directory could not be opened
	self       *directory
	wants      []want
	results    []result
	out        []byte // records of everything that the worker could do alone
}

func (j *copyJob) close() { j.dir.done() }

// directory is a directory whose attributes are sent after everything in it.
type directory struct {
	made  bool // in this round
	stat  unix.Stat_t
	quiet bool // it was settled when it was listed
	entry Entry
	known self
	sends bool // the mirror has other attributes
}

// want is a name to be examined.
type want struct {
	delta
	old *known // what the mirror has, if of the same kind
}

// result is the result for a name.
type result struct {
	end      int    // of its records in the job's
	entries  int    // in these records
	data     uint64 // bytes of content
	kept     int64  // bytes of content that an earlier copy had left
	deferred bool   // only emit can do it
	lost     bool   // missing, or no longer the same
	known    known
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
	atDir    *openDir
	verbatim copyJob
}

func (f *feeder) close() { f.atDir.done() }

// open opens a directory of the tree, starting from the one that was opened last if possible. It returns
// nil if the directory does not exist. The caller need not release it.
func (f *feeder) open(path string) (*openDir, error) {
	root, rest := f.c.tree.root, path
	if f.atDir != nil && len(path) > len(f.at) && path[:len(f.at)] == f.at &&
		(f.at == "" || path[len(f.at)] == '/') {
		root, rest = f.atDir.fd, path[len(f.at):]
		if rest[0] == '/' {
			rest = rest[1:]
		}
	}
	fd, err := openBelow(root, rest)
	if moved(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	f.atDir.done()
	f.at, f.atDir = path, newOpenDir(fd)
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
	spool *spool
	in    *spoolReader
}

func (l *nameList) add(dir, name string) error {
	if l.spool == nil {
		l.spool = newSpool(dir)
	}
	_, err := l.spool.append(append([]byte{byte(len(name))}, name...))
	return err
}

// next returns "" at the end.
func (l *nameList) next() (string, error) {
	if l.spool == nil {
		return "", nil
	}
	if l.in == nil {
		l.in = l.spool.reader(0, l.spool.size())
	}
	p, err := l.in.next(1)
	if errors.Is(err, io.EOF) {
		return "", nil
	}
	if err == nil {
		p, err = l.in.next(int(p[0]))
	}
	return string(p), err
}

func (l *nameList) close() {
	if l.spool != nil {
		l.spool.close()
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
		next, err := f.make(joined(top.path, name), name, depth+len(stack))
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
	l.self.entry = Entry{Mode: unix.S_IFDIR | 0o700}
	if depth >= maxDepth || len(path) > maxPath {
		return l, fmt.Errorf("%.100q...: directories are more than %d deep, or their path is longer than "+
			"%d bytes", path, maxDepth, maxPath)
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
	var names *sortedNames
	if dir != nil {
		if err := unix.Fstat(dir.fd, &l.self.stat); err != nil {
			return l, err
		}
		if names, err = listSorted(dir.fd, f.c.source.config.Dir, f.listing); err != nil {
			return l, fmt.Errorf("%q: %w", path, err)
		}
		defer names.close()
	}
	if err := f.put(&copyJob{kind: jobDirectory, path: path,
		frame: frame{depth: depth, name: name, first: true, last: true}, dir: dir.use(),
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
func (f *feeder) names(path string, dir *openDir, names *sortedNames, children *nameList) error {
	job := &copyJob{kind: jobFiles, path: path, dir: dir.use()}
	defer func() { job.close() }()
	last := ""
	for {
		name, more := names.peek()
		if !more {
			break
		}
		if err := names.skip(); err != nil {
			return err
		}
		kind, err := typeOf(dir.fd, name)
		if err != nil {
			return fmt.Errorf("%q: %w", joined(path, name.name), err)
		}
		if kind == unix.DT_UNKNOWN || name.name == last {
			continue
		}
		last = name.name
		if job, err = f.want(job, children,
			want{delta: delta{kind: deltaNew, name: name.name, mode: kind}}); err != nil {
			return err
		}
	}
	return f.flush(&job)
}

// want adds a name to a job, and puts the job when it is full.
func (f *feeder) want(job *copyJob, children *nameList, w want) (*copyJob, error) {
	if w.mode == unix.DT_DIR && w.kind != deltaGone {
		if err := children.add(f.c.source.config.Dir, w.name); err != nil {
			return job, err
		}
	}
	job.wants = append(job.wants, w)
	if len(job.wants) < batchNames {
		return job, nil
	}
	full := job
	job = &copyJob{kind: jobFiles, path: full.path, dir: full.dir.use()}
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
