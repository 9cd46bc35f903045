package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/godwit/godwit/internal/kernel"
)

// A thread that has called vfork(2), as posix_spawn(3) does, sleeps until its child has called execve or
// ended, and shares its memory with the child until then. The freezers count it as frozen, but no tracer
// can stop it (kernel/fork.c, wait_for_vfork_done), and the frozen child never wakes it. So nothing can
// dump it.

// vfork is a process with a waiting thread, and the child for which it waits.
type vfork struct{ parent, child int }

// vforks finds such processes of a frozen group.
func (c *Cgroup) vforks() ([]vfork, error) {
	pids, err := c.Procs()
	if err != nil || len(pids) < 2 {
		return nil, err
	}
	slices.Sort(pids)
	var found []vfork
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
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

// goesOn reports whether the child still has the parent's memory, and a thread of the parent waits.
func (v vfork) goesOn() bool {
	if same, err := kernel.ShareMemory(v.parent, v.child); err != nil || !same {
		return false
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", v.parent))
	return err == nil && slices.ContainsFunc(threads, waitsForChild)
}

func (v vfork) String() string {
	return fmt.Sprintf("%s waits in vfork for its child, %s, which has not called execve", describe(v.parent),
		describe(v.child))
}

func (v vfork) remedy() string { return "try again when the child has called execve or ended" }
