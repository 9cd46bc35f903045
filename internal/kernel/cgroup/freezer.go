package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// freezer stops the processes of a group: cgroup.freeze of version 2 (Linux 5.2), or freezer.state of
// version 1.
type freezer struct {
	dir     string
	unified bool
}

// Freeze stops all processes of the group. It returns when all are stopped, with the time at which that was
// seen. It may be called on a frozen group. If ctx ends first, or on an error, the group is thawed again.
func (c *Cgroup) Freeze(ctx context.Context) (time.Time, error) {
	at, err := c.freeze.stop(ctx, c.freezeOfOthers)
	if err != nil {
		if thawErr := c.Thaw(); thawErr != nil {
			err = errors.Join(err, thawErr)
		}
		return time.Time{}, fmt.Errorf("freeze cgroup %s: %w", c.freeze.dir, err)
	}
	return at, nil
}

// Frozen reports whether all processes are stopped at this moment.
func (c *Cgroup) Frozen() (bool, error) {
	frozen, err := c.freeze.stopped()
	if err != nil {
		return false, fmt.Errorf("read the state of cgroup %s: %w", c.freeze.dir, err)
	}
	return frozen, nil
}

// Paused reports whether anybody has frozen the processes: engines use the freezer of version 1 if there is
// one, which keeps that of version 2 from stopping anything.
func (c *Cgroup) Paused() (bool, error) {
	frozen, err := c.Frozen()
	if err != nil || frozen || c.freezeOfOthers.dir == "" {
		return frozen, err
	}
	return c.freezeOfOthers.stopped()
}

// KeepFrozen waits until a group that must stay frozen is frozen. If somebody has thawed it, KeepFrozen
// freezes it again. Unlike Freeze it never thaws: a failure leaves the order to freeze in place. Processes
// that another program's freezer has stopped do not run either: when that freezer releases them, the order
// stops them.
func (c *Cgroup) KeepFrozen(ctx context.Context) error {
	if _, err := c.freeze.stop(ctx, c.freezeOfOthers); err != nil && !errors.Is(err, errPaused) {
		return fmt.Errorf("keep cgroup %s frozen: %w", c.freeze.dir, err)
	}
	return nil
}

// ToldToFreeze reports whether the last order was to freeze. Unlike Frozen it does not change while a
// tracer stops or lets go of frozen processes.
func (c *Cgroup) ToldToFreeze() (bool, error) {
	told, err := c.freeze.ordered()
	if err != nil {
		return false, fmt.Errorf("read the order of cgroup %s: %w", c.freeze.dir, err)
	}
	return told, nil
}

// Thaw lets the processes continue. A group that was not frozen, or is gone, is no error.
func (c *Cgroup) Thaw() error {
	err := c.freeze.order(false)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("thaw cgroup %s: %w", c.freeze.dir, err)
	}
	return nil
}

var errPaused = errors.New("another program has paused its processes")

// reorderEvery is the number of checks after which the order to freeze is repeated. Version 1 can stay in
// FREEZING when a process forked or was in a state that the freezer skips at that moment; writing the order
// again includes the process (runc does the same, libcontainer/cgroups/fs/freezer.go).
const reorderEvery = 16

// stop freezes with f, unless another freezer has already stopped the processes.
func (f freezer) stop(ctx context.Context, other freezer) (time.Time, error) {
	if err := f.order(true); err != nil {
		return time.Time{}, err
	}
	pause := kernel.NewBackoff()
	for look := 1; ; look++ {
		frozen, err := f.stopped()
		if err != nil {
			return time.Time{}, err
		}
		if frozen {
			return time.Now(), nil
		}
		if other.dir != "" {
			if paused, err := other.stopped(); err == nil && paused {
				return time.Time{}, errPaused
			}
		}
		if err := ctx.Err(); err != nil {
			return time.Time{}, fmt.Errorf("%w before all its processes stopped: %s", err, f.running())
		}
		pause.Wait()
		if !f.unified && look%reorderEvery == 0 {
			if err := f.order(true); err != nil {
				return time.Time{}, err
			}
		}
	}
}

func (f freezer) order(freeze bool) error {
	file, value := "cgroup.freeze", "0"
	if f.unified && freeze {
		value = "1"
	}
	if !f.unified {
		file, value = "freezer.state", "THAWED"
		if freeze {
			value = "FROZEN"
		}
	}
	return writeFile(filepath.Join(f.dir, file), value)
}

// ordered reports whether the last order was to freeze, obeyed or not.
func (f freezer) ordered() (bool, error) {
	file, thawed := "cgroup.freeze", "0"
	if !f.unified {
		file, thawed = "freezer.state", "THAWED"
	}
	data, err := os.ReadFile(filepath.Join(f.dir, file))
	return err == nil && strings.TrimSpace(string(data)) != thawed, err
}

func (f freezer) stopped() (bool, error) {
	if !f.unified {
		data, err := os.ReadFile(filepath.Join(f.dir, "freezer.state"))
		return strings.TrimSpace(string(data)) == "FROZEN", err
	}
	frozen, err := eventIs(f.dir, "frozen 1")
	if err != nil || !frozen {
		return false, err
	}
	return frozenBelow(f.dir)
}

// frozenBelow verifies that a group of version 2 that reports that it is frozen is frozen. A group without
// nested groups is. A group with both processes and nested groups reports that as soon as either are frozen
// (kernel/cgroup/freezer.c: cgroup_update_frozen counts processes, cgroup_propagate_frozen groups).
func frozenBelow(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	mixed := false
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		mixed = true
		frozen, err := freezer{dir: filepath.Join(dir, e.Name()), unified: true}.stopped()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // removed meanwhile
			continue
		}
		if err != nil || !frozen {
			return false, err
		}
	}
	if !mixed {
		return true, nil
	}
	return noneRuns(dir)
}

// noneRuns checks each thread of a group's own processes. All threads were woken to be frozen, so a
// sleeping thread is frozen. A thread that is just going to sleep finds that it must not, and runs on.
func noneRuns(dir string) (bool, error) {
	for range 2 {
		pids, err := procsIn(dir)
		if err != nil {
			return false, err
		}
		for _, pid := range pids {
			runs, err := anyThreadRuns(pid)
			if runs || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// eventIs looks for a line of a group's cgroup.events.
func eventIs(dir, line string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err != nil {
		return false, err
	}
	for l := range strings.Lines(string(data)) {
		if strings.TrimSpace(l) == line {
			return true, nil
		}
	}
	return false, nil
}

// running names a process that keeps the group from being frozen, for the error message.
func (f freezer) running() string {
	pids, err := (&Cgroup{freeze: f}).Procs()
	if err != nil {
		return err.Error()
	}
	for _, pid := range pids {
		p, err := kernel.ReadProcess(pid)
		if err == nil && (p.State == 'D' || p.State == 'R') {
			return fmt.Sprintf("process %d (%s) is in state %c", pid, p.Name, p.State)
		}
	}
	return "no process found that runs"
}

// anyThreadRuns reports whether a thread of a process runs or waits for a device. An ended process has
// none.
func anyThreadRuns(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return false, err
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return false, err
		}
		_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
		if strings.HasPrefix(rest, "R") || strings.HasPrefix(rest, "D") && !waitsForChild(thread) ||
			aboutToSleep(thread) {
			return true, nil
		}
	}
	return false, nil
}

// aboutToSleep reports whether a thread in a sleeping state is not asleep yet: it may just have lost its
// processor, and will find that it must not sleep. The kernel waits for a moment until a thread is off its
// processor before it reports where the thread is (proc_pid_syscall(5)).
func aboutToSleep(thread string) bool {
	data, err := os.ReadFile(thread + "/syscall")
	return err == nil && strings.HasPrefix(string(data), "running")
}

// waitsForChild reports whether a thread waits for a child made by vfork(2) that has not called execve.
// Such a thread counts as frozen.
func waitsForChild(thread string) bool {
	data, err := os.ReadFile(thread + "/syscall") // proc_pid_syscall(5)
	number, _, _ := strings.Cut(string(data), " ")
	return err == nil && slices.Contains(kernel.ForkSyscalls[:], number)
}

// Kill ends all processes of the group, frozen or not, held by a Seizure or not. It returns when all are
// gone or are zombies that their parent has not collected. None of them runs another instruction of its
// own: SIGKILL is pending before they are released and thawed. The group is not left frozen: runc considers
// a container without processes in a frozen group paused, and does not delete it (libcontainer,
// refreshState).
func (c *Cgroup) Kill(ctx context.Context) error {
	pause := kernel.NewBackoff()
	for {
		left, err := c.killOnce(ctx)
		if err != nil {
			return fmt.Errorf("kill cgroup %s: %w", c.freeze.dir, err)
		}
		if left == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("kill cgroup %s: %w while %d processes are still ending", c.freeze.dir, err,
				left)
		}
		pause.Wait()
	}
}

// killOnce kills the present processes of the group and returns how many had not ended.
func (c *Cgroup) killOnce(ctx context.Context) (int, error) {
	pids, err := c.Procs()
	if err != nil {
		return 0, err
	}
	left := living(pids)
	if left == 0 {
		return 0, c.leave()
	}
	if err := c.signal(pids); err != nil {
		return 0, err
	}
	// A Seizure makes them stop once more on their way out (PTRACE_EVENT_EXIT), even if they are frozen in
	// version 2.
	if err := kernel.ReleaseSeized(ctx, pids); err != nil {
		return 0, err
	}
	if c.freeze.unified {
		return left, c.letGo()
	}
	return left, c.Thaw()
}

// signal sends SIGKILL to the processes of the group. Processes that a Seizure holds need not be frozen for
// that: they do not run between the signal and their end.
func (c *Cgroup) signal(pids []int) error {
	if c.freeze.unified {
		err := writeFile(filepath.Join(c.freeze.dir, "cgroup.kill"), "1") // Linux 5.14
		if err == nil {
			return killLeaderless(pids)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, pid := range pids {
		if err := killProcess(pid); err != nil {
			return err
		}
	}
	return nil
}

// killLeaderless kills processes whose first thread has ended. cgroup.kill sends its signal to that thread
// alone (kernel/cgroup/cgroup.c, __cgroup_kill; kernel/signal.c, complete_signal).
func killLeaderless(pids []int) error {
	for _, pid := range pids {
		p, err := kernel.ReadProcess(pid)
		if err != nil || p.State != 'Z' || kernel.Ended(pid) {
			continue
		}
		if err := killProcess(pid); err != nil {
			return err
		}
	}
	return nil
}

func killProcess(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// living counts processes that have not ended.
func living(pids []int) (count int) {
	for _, pid := range pids {
		if !kernel.Ended(pid) {
			count++
		}
	}
	return count
}

// leave thaws a group without processes: somebody else may have killed them, which is possible in version 2
// while they are frozen.
func (c *Cgroup) leave() error {
	if c.freeze.unified {
		return c.letGo()
	}
	return nil // a frozen process of version 1 does not end
}

// letGo thaws a group of version 2 whose processes end. The group may vanish with them.
func (c *Cgroup) letGo() error {
	err := writeFile(filepath.Join(c.freeze.dir, "cgroup.freeze"), "0")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// writeFile writes to a file of a kernel file system, and never creates it.
func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}
