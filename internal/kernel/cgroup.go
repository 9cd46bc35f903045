package kernel

import (
	"context"
	"errors"
	"time"
)

// Cgroup is the control group of a container: one directory in each hierarchy that is mounted (pure v2, pure v1, or
// both). Its methods act on the processes of the group and of all groups below it.
type Cgroup struct {
	dirs   []string // the group's directory in each hierarchy
	freeze freezer  // the one that stops processes
}

// CgroupOf finds the cgroup of a process from /proc/PID/cgroup and the mounts of the calling process. It fails if
// the process is in the root group of all hierarchies that can freeze: freezing that would stop the machine.
func CgroupOf(pid int) (*Cgroup, error) { return nil, errors.ErrUnsupported }

// OpenCgroup finds a cgroup by its name below the mount points of the hierarchies, as in runc's cgroupsPath, for
// example "/godwit/5f3a". It works when no process is in it any more. Error: fs.ErrNotExist when no hierarchy has it.
func OpenCgroup(name string) (*Cgroup, error) { return nil, errors.ErrUnsupported }

// FreezerDir is the absolute directory that freezes the group: what CRIU wants as freeze_cgroup.
func (c *Cgroup) FreezerDir() string { return "" }

// Dirs are the absolute directories of the group, one for each hierarchy.
func (c *Cgroup) Dirs() []string { return nil }

// Freeze stops all processes of the group and returns when all are stopped, with the instant at which that was seen.
// It may be called on a frozen group. If ctx ends first, or an error is returned, the group is thawed again.
func (c *Cgroup) Freeze(ctx context.Context) (time.Time, error) {
	return time.Time{}, errors.ErrUnsupported
}

// Frozen tells whether all processes are stopped at this moment.
func (c *Cgroup) Frozen() (bool, error) { return false, errors.ErrUnsupported }

// Thaw lets the processes go on. It is no error if they were not frozen or the group is gone.
func (c *Cgroup) Thaw() error { return errors.ErrUnsupported }

// Kill ends all processes of the group, frozen or not, without any of them running another instruction of its own
// where the kernel can do so (cgroup.kill; on v1 SIGKILL is queued before the thaw), and returns when all are gone
// or are zombies that their parent has not collected.
func (c *Cgroup) Kill(ctx context.Context) error { return errors.ErrUnsupported }

// Procs are the processes of the group and of all below it, in the caller's pid namespace, in ascending order.
func (c *Cgroup) Procs() ([]int, error) { return nil, errors.ErrUnsupported }

// Remove removes the group's directories in all hierarchies, and those below. Processes must be gone. It is no error
// if there are none.
func (c *Cgroup) Remove() error { return errors.ErrUnsupported }

type freezer struct{}
