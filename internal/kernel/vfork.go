package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"
)

// A thread that has called vfork(2), as posix_spawn(3) does, sleeps until its child has called execve or
// ended, and shares its memory with the child so long. The freezers count it as frozen, but no tracer can
// stop it (kernel/fork.c, wait_for_vfork_done), and the frozen child never wakes it. So nothing can dump it.

// vforkPatience is how long a container may take to come to a moment at which no thread waits for such a
// child. Most take less than a millisecond.
const vforkPatience = 5 * time.Second

var errAlwaysForking = fmt.Errorf("within %s, some thread was always waiting in vfork", vforkPatience)

// vfork is a process with a thread that waits, and the child for which it waits.
type vfork struct{ parent, child int }

// vforks finds those of a frozen group.
func (c *Cgroup) vforks() ([]vfork, error) {
	pids, err := c.Procs()
	if err != nil || len(pids) < 2 {
		return nil, err
	}
	slices.Sort(pids)
	var found []vfork
	for _, pid := range pids {
		process, err := ReadProcess(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		_, listed := slices.BinarySearch(pids, process.Parent)
		if one := (vfork{process.Parent, pid}); listed && one.goesOn() {
			found = append(found, one)
		}
	}
	return found, nil
}

// goesOn tells whether the child has the parent's memory, and a thread of the parent waits.
func (v vfork) goesOn() bool {
	if same, err := ShareMemory(v.parent, v.child); err != nil || !same {
		return false
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", v.parent))
	return err == nil && slices.ContainsFunc(threads, waitsForChild)
}

// awaitVforks waits in a running group until those that were found have come to their end.
func awaitVforks(ctx context.Context, found []vfork) error {
	for _, one := range found {
		for pause := newBackoff(); one.goesOn(); pause.wait() {
			if ctx.Err() != nil {
				return fmt.Errorf("process %d waits in vfork for child %d, which has not called execve: %w",
					one.parent, one.child, context.Cause(ctx))
			}
		}
	}
	return nil
}
