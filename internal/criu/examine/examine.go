package examine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
)

// Problem is something that CRIU cannot dump.
type Problem struct {
	PID    int    // PID in the caller's PID namespace
	Inside int    // PID of the same process in the container
	Name   string // its command name
	FD     int    // descriptor; -1: none
	What   string // for example: io_uring
	Why    string
	Remedy string
}

// String returns the problem's subject in one line: process 12 (worker), descriptor 7: io_uring.
func (p Problem) String() string {
	s := fmt.Sprintf("process %d (%s)", p.Inside, p.Name)
	if p.FD >= 0 {
		s += fmt.Sprintf(", descriptor %d", p.FD)
	}
	return s + ": " + p.What
}

// DefaultGhostLimit is the size up to which a dump takes along a file without a name, in bytes. CRIU's own
// limit is 1 MiB, and larger files fail the dump.
const DefaultGhostLimit = 1 << 30

// Subject is what Examine examines.
type Subject struct {
	PIDs   []int    // all processes of the container (cgroup.Cgroup.Procs)
	Stdio  []string // as in descriptors.json: pipes that the restore gets from outside
	Groups bool     // the caller recreates control groups within the container's
	// keys of external mounts, whose file systems do not matter; nil: mounts are not examined
	Mounts []string
}

// finding is the result of a check; the caller adds the process.
type finding struct {
	fd     int // noFD if there is none
	what   string
	why    string
	remedy string
}

const noFD = -1

// task is one process under examination.
type task struct {
	kernel.Process
	fds []descriptors.Descriptor
}

// examination has the data that all checks need.
type examination struct {
	subject Subject
	tasks   []task
	byPID   map[int]*task
	root    *task                   // first process of the container
	mounts  map[string]kernel.Mount // of all its mount namespaces, by ID
	spaces  map[string]string       // the mount namespace of each mount
	sockets map[uint32]bool         // inodes of the sockets of all its processes
	peers   map[uint32]kernel.UnixSocket
	waiting map[uint32]uint32 // inode of a unix socket that is not accepted yet: inode of its listener
	removed *removedFiles     // nil until something is watched
	ends    map[string]int    // how the container's processes hold each pipe: readEnd, writeEnd
}

// Examine lists what CRIU cannot dump in the given processes. It neither changes nor stops them, so its
// result is about this moment. It ignores processes that end meanwhile. What CRIU 4.2.1 can and cannot do
// was tried (TestExamine).
func Examine(ctx context.Context, subject Subject) ([]Problem, error) {
	x, err := newExamination(ctx, subject)
	if err != nil || x.root == nil {
		return nil, err
	}
	problems, err := x.wholeContainer()
	if err != nil {
		return nil, err
	}
	for i := range x.tasks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found, err := x.process(&x.tasks[i])
		if err != nil && !descriptors.IsGone(err) {
			return nil, fmt.Errorf("examine process %d (%s): %w", x.tasks[i].PID, x.tasks[i].Name, err)
		}
		problems = append(problems, problemsOf(&x.tasks[i], found)...)
	}
	full, err := x.usedUp(ctx)
	return append(problems, full...), err
}

func problemsOf(t *task, found []finding) []Problem {
	var problems []Problem
	for _, f := range found {
		problems = append(problems, Problem{
			PID: t.PID, Inside: t.NamespaceID, Name: t.Name, FD: f.fd, What: f.what, Why: f.why,
			Remedy: f.remedy,
		})
	}
	return problems
}

// newExamination collects data about all processes.
func newExamination(ctx context.Context, subject Subject) (*examination, error) {
	x := &examination{
		subject: subject, byPID: map[int]*task{},
		mounts: map[string]kernel.Mount{}, spaces: map[string]string{}, sockets: map[uint32]bool{},
		peers: map[uint32]kernel.UnixSocket{}, waiting: map[uint32]uint32{}, ends: map[string]int{},
	}
	for _, pid := range subject.PIDs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p, err := kernel.ReadProcess(pid)
		if err == nil {
			t := task{Process: p}
			if t.fds, err = descriptors.List(pid); err == nil {
				x.tasks = append(x.tasks, t)
				continue
			}
		}
		if !descriptors.IsGone(err) {
			return nil, fmt.Errorf("examine process %d: %w", pid, err)
		}
	}
	if len(x.tasks) == 0 {
		return x, nil
	}
	x.root = &x.tasks[max(slices.IndexFunc(x.tasks, func(t task) bool { return t.NamespaceID == 1 }), 0)]
	return x, x.collect()
}

// collect makes the sets that say what is inside the container.
func (x *examination) collect() error {
	namespaces := map[string]bool{}
	for i := range x.tasks {
		t := &x.tasks[i]
		x.byPID[t.PID] = t
		for _, d := range t.fds {
			if inode, ok := socketInode(d.Target); ok {
				x.sockets[inode] = true
			}
			if isPipe(d.Target) {
				x.ends[d.Target] |= endOf(t.PID, d.FD)
			}
		}
		if err := x.collectNamespaces(t, namespaces); err != nil && !descriptors.IsGone(err) {
			return fmt.Errorf("examine process %d: %w", t.PID, err)
		}
	}
	return nil
}

// collectNamespaces reads the mounts and the unix sockets of a process's namespaces, once for each
// namespace.
func (x *examination) collectNamespaces(t *task, seen map[string]bool) error {
	for _, kind := range []string{"mnt", "net"} {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", t.PID, kind))
		if errors.Is(err, fs.ErrPermission) || seen[name] {
			continue // a zombie, of which nothing can be read
		}
		if err != nil {
			return err
		}
		seen[name] = true
		if kind == "mnt" {
			err = x.collectMounts(t.PID, name)
		} else {
			err = x.collectPeers(t.PID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *examination) collectPeers(pid int) error {
	sockets, err := kernel.UnixSockets(pid)
	for _, s := range sockets {
		x.peers[s.Inode] = s
		for _, w := range s.Waiting {
			x.waiting[w] = s.Inode
		}
	}
	return err
}

// exitPatience is how long a process whose first thread has ended may take to end completely.
const exitPatience = 50 * time.Millisecond

// process examines one process. A process that is just ending looks odd but is no problem: it is no longer
// in a cgroup of the container, and its first thread may have ended before the others.
func (x *examination) process(t *task) ([]finding, error) {
	found, err := x.checkAll(t)
	for until := time.Now().Add(exitPatience); len(found) > 0; time.Sleep(time.Millisecond) {
		now, err := kernel.ReadProcess(t.PID)
		first := now.State == 'Z' && now.Threads > 1
		if errors.Is(err, fs.ErrNotExist) || err == nil &&
			(now.StartTicks != t.StartTicks || now.Exiting && !first) {
			return nil, nil
		}
		if !first || time.Now().After(until) {
			break
		}
	}
	return found, err
}

// checkAll runs all checks on one process.
func (x *examination) checkAll(t *task) ([]finding, error) {
	found := x.checkTask(t)
	if t.State == 'Z' || t.State == 'X' {
		return found, nil
	}
	more, err := x.checkNamespaces(t)
	if err != nil {
		return found, err
	}
	found = append(found, more...)
	if more, err = x.checkMemory(t); err != nil {
		return found, err
	}
	found = append(found, more...)
	found = append(found, x.checkDirectories(t)...)
	more, err = x.checkDescriptors(t)
	return append(found, more...), err
}
