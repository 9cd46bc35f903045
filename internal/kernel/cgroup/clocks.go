package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// A thread reads clocks without entering the kernel, with code that the kernel has mapped into its process
// (vdso(7)). That code first reads the machine's clock and then adds the offset of the time namespace
// (Linux, lib/vdso/gettimeofday.c, do_hres_timens). CRIU gives restored processes a time namespace whose
// offset compensates for the other machine's clock. A thread that was frozen between the two would add the
// new offset to the old machine's clock: one reading would be wrong by the difference of the clocks, and on
// the same machine it would go back by the length of the freeze. And on a machine with another kernel, that
// code does not exist any more. So no thread may be moved in the middle of it.
//
// One case remains: a thread that is frozen in the handler of a signal that came in the middle of a
// reading.

const (
	// finishPatience is how long threads may take to finish a reading. It takes less than a microsecond of
	// a processor, which other processes may have.
	finishPatience = 30 * time.Second
	// refreezePatience is how long the freeze of a group with held threads may take. A thread that calls
	// execve may wait for a held thread.
	refreezePatience = time.Second
)

var errAlwaysReading = fmt.Errorf("in %s there was no moment at which none of its threads was reading a "+
	"clock", finishPatience)

// vdsoName is the name of the kernel's code in a process's mappings.
const vdsoName = "[vdso]"

// freezeOutsideClocks freezes the group at a moment at which no thread is in the middle of a reading.
func (c *Cgroup) freezeOutsideClocks(ctx context.Context) (at time.Time, err error) {
	if at, err = c.Freeze(ctx); err != nil {
		return at, err
	}
	reading, err := c.reading(nil)
	if err != nil || len(reading) == 0 {
		return at, err
	}
	f := &finish{group: c, held: map[int]*kernel.Tracee{}}
	kernel.AsTracer(func() bool {
		at, err = f.run(ctx, reading)
		return f.release()
	})
	return at, err
}

// finish holds threads of a group where they are not reading a clock, until none is.
type finish struct {
	group *Cgroup
	held  map[int]*kernel.Tracee
}

// run lets reading threads finish, while the group is thawed, and freezes it again. Each thread that was
// found reading is held from then on, so there are fewer each time.
func (f *finish) run(ctx context.Context, reading []thread) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, finishPatience, errAlwaysReading)
	defer cancel()
	for {
		if ctx.Err() != nil {
			return time.Time{}, context.Cause(ctx)
		}
		if err := f.group.Thaw(); err != nil {
			return time.Time{}, err
		}
		if err := f.hold(ctx, reading); err != nil {
			return time.Time{}, err
		}
		at, err := f.freeze(ctx)
		if err != nil {
			return at, err
		}
		if reading, err = f.group.reading(f.held); err != nil {
			return at, err
		}
		if len(reading) == 0 && f.letGo(ctx) {
			return f.group.Freeze(ctx)
		}
	}
}

// freeze freezes the group with the held threads in it, or, if they prevent that, without them.
func (f *finish) freeze(ctx context.Context) (time.Time, error) {
	limited, cancel := context.WithTimeout(ctx, refreezePatience)
	defer cancel()
	at, err := f.group.Freeze(limited)
	if err == nil || ctx.Err() != nil || !f.release() {
		return at, err
	}
	return f.group.Freeze(ctx)
}

// hold stops threads where they are not reading.
func (f *finish) hold(ctx context.Context, reading []thread) error {
	reading = slices.DeleteFunc(slices.Clone(reading), func(one thread) bool { return !f.seize(one) })
	for pause := kernel.ShortestRun; ; pause = min(pause*2, kernel.LongestRun) {
		if err := f.halt(reading); err != nil {
			return err
		}
		reading = slices.DeleteFunc(reading,
			func(one thread) bool { return f.held[one.tid] == nil || !one.inside() })
		if len(reading) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: thread %d (process %d)", context.Cause(ctx), reading[0].tid,
				reading[0].pid)
		}
		for _, one := range reading {
			_ = f.held[one.tid].Ptrace(unix.PTRACE_CONT, 0, 0) // if it is gone, awaitStop notices
		}
		time.Sleep(pause)
	}
}

// seize traces a thread. It leaves out a thread that has ended, or that somebody else traces, which CRIU
// would not dump either.
func (f *finish) seize(one thread) bool {
	t := &kernel.Tracee{PID: one.pid, TID: one.tid}
	t.Seized = t.Ptrace(unix.PTRACE_SEIZE, 0, 0) == nil
	if t.Seized {
		f.held[one.tid] = t
	}
	return t.Seized
}

// halt stops running threads. It interrupts all of them before it waits for any, because they may have to
// wait for a processor.
func (f *finish) halt(reading []thread) error {
	for _, one := range reading {
		_ = f.held[one.tid].Ptrace(unix.PTRACE_INTERRUPT, 0, 0) // as above
	}
	for _, one := range reading {
		err := f.held[one.tid].AwaitStop()
		if errors.Is(err, fs.ErrNotExist) {
			delete(f.held, one.tid)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// release releases all held threads and reports whether it could. In a frozen group they do not run.
func (f *finish) release() bool {
	for tid, t := range f.held {
		if err := t.Release(); err == nil {
			delete(f.held, tid)
		}
	}
	return len(f.held) == 0
}

// letGo releases all held threads of a frozen group, and waits until they are where the freezer keeps them.
// A traced thread counts as frozen. When it has got a processor, within the kernel, the group is not frozen
// for a moment (kernel/signal.c, ptrace_stop).
func (f *finish) letGo(ctx context.Context) bool {
	held := slices.Collect(maps.Keys(f.held))
	if !f.release() {
		return false
	}
	for pause := kernel.NewBackoff(); slices.ContainsFunc(held, onItsWay) && ctx.Err() == nil; {
		pause.Wait()
	}
	return true
}

// onItsWay reports whether a thread waits for its tracer or for a processor.
func onItsWay(tid int) bool {
	p, err := kernel.ReadProcess(tid)
	return err == nil && (p.State == 't' || p.State == 'R')
}

// thread is a thread that was frozen in the kernel's code.
type thread struct {
	pid, tid int
	code     kernel.PageRange
}

// reading finds the threads of a frozen group that are in the middle of reading a clock, except held
// threads.
func (c *Cgroup) reading(held map[int]*kernel.Tracee) ([]thread, error) {
	pids, err := c.Procs()
	if err != nil {
		return nil, err
	}
	var found []thread
	for _, pid := range pids {
		threads, err := readingIn(pid)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, one := range threads {
			if held[one.tid] == nil {
				found = append(found, one)
			}
		}
	}
	return found, nil
}

// readingIn finds those threads of one process. It reads the process's mappings only if a thread was
// computing when it was frozen.
func readingIn(pid int) ([]thread, error) {
	threads, err := kernel.ThreadsOf(pid)
	if err != nil {
		return nil, err
	}
	var code kernel.PageRange
	var found []thread
	for _, tid := range threads {
		at, computing := instructionOf(pid, tid)
		if !computing {
			continue
		}
		if code.End == 0 {
			if code, err = vdsoOf(pid); err != nil {
				return nil, err
			}
		}
		if at >= code.Start && at < code.End {
			found = append(found, thread{pid: pid, tid: tid, code: code})
		}
	}
	return found, nil
}

// inside reports whether a stopped thread is in the kernel's code.
func (t thread) inside() bool {
	at, computing := instructionOf(t.pid, t.tid)
	return computing && at >= t.code.Start && at < t.code.End
}

// instructionOf returns where a stopped thread is, if it is not in a system call (proc_pid_syscall(5)). A
// clock read by a system call is consistent. A thread that is frozen by version 2 wakes up for a moment,
// within the kernel, when a signal comes.
func instructionOf(pid, tid int) (at uint64, computing bool) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "task", strconv.Itoa(tid), "syscall")
	line, err := os.ReadFile(path)
	pause := kernel.NewBackoff()
	for deadline := time.Now().Add(kernel.BusyPatience); err == nil &&
		strings.HasPrefix(string(line), "running") &&
		time.Now().Before(deadline); {
		pause.Wait()
		line, err = os.ReadFile(path)
	}
	if err != nil {
		return 0, false // it has ended
	}
	fields := strings.Fields(string(line))
	if len(fields) != 3 || fields[0] != "-1" {
		return 0, false
	}
	at, err = strconv.ParseUint(fields[2], 0, 64)
	return at, err == nil
}

// vdsoOf finds the kernel's code in a process, which need not have it.
func vdsoOf(pid int) (kernel.PageRange, error) {
	space, err := kernel.OpenAddressSpace(pid)
	if err != nil {
		return kernel.PageRange{}, err
	}
	defer space.Close()
	all, err := space.Mappings()
	if err != nil {
		return kernel.PageRange{}, err
	}
	for _, m := range all {
		if m.Name == vdsoName {
			return kernel.PageRange{Start: m.Start, End: m.End}, nil
		}
	}
	return kernel.PageRange{Start: math.MaxUint64, End: math.MaxUint64}, nil // nothing is there
}
