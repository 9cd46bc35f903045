package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leastOOM is the score adjustment with which the kernel's OOM killer never takes a process
// (proc_pid_oom_score_adj(5)).
const leastOOM = -1000

// LowerOOM has the OOM killer take a process as late as this process may ask for, and returns the
// adjustment that it had. Below the lowest one that was ever set for it with privilege, mostly 0,
// that takes CAP_SYS_RESOURCE. Error: fs.ErrNotExist when it is gone.
func LowerOOM(pid int) (was int, err error) {
	if was, err = ReadOOM(pid); err != nil {
		return 0, err
	}
	err = SetOOM(pid, leastOOM)
	if errors.Is(err, fs.ErrPermission) {
		err = nil
		if was > 0 {
			err = SetOOM(pid, 0)
		}
	}
	if errors.Is(err, fs.ErrPermission) { // what it has is the least
		err = nil
	}
	return was, err
}

// ReadOOM reads the score adjustment of a process.
func ReadOOM(pid int) (int, error) {
	text, err := readProc(pid, "oom_score_adj")
	if err != nil {
		return 0, fmt.Errorf("read the OOM score adjustment of process %d: %w", pid, err)
	}
	value, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("OOM score adjustment of process %d: %w", pid, err)
	}
	return value, nil
}

// SetOOM sets it.
func SetOOM(pid, value int) error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(value)), 0)
	if err != nil {
		return fmt.Errorf("set the OOM score adjustment of process %d: %w", pid, whenGone(err))
	}
	return nil
}

// oomdAvoid is by what systemd-oomd is told to take a group last (systemd.resource-control(5),
// ManagedOOMPreference=).
const oomdAvoid = "user.oomd_avoid"

// MayAvoidOOMD reports whether AvoidOOMD would tell systemd-oomd something: not if somebody else has.
func (c *Cgroup) MayAvoidOOMD() (bool, error) {
	if !c.freeze.unified {
		return false, nil
	}
	_, err := unix.Getxattr(c.freeze.dir, oomdAvoid, nil)
	switch {
	case errors.Is(err, unix.ENODATA):
		return true, nil
	case err == nil, errors.Is(err, unix.ENOTSUP):
		return false, nil
	}
	return false, fmt.Errorf("read %s of cgroup %s: %w", oomdAvoid, c.freeze.dir, err)
}

// AvoidOOMD has systemd-oomd take the group last, unless somebody else has told it when to. It
// looks at groups of version 2 only.
func (c *Cgroup) AvoidOOMD() error {
	if !c.freeze.unified {
		return nil
	}
	err := unix.Setxattr(c.freeze.dir, oomdAvoid, []byte("1"), unix.XATTR_CREATE)
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM): // before Linux 5.7 there is none
		return nil
	}
	return fmt.Errorf("set %s of cgroup %s: %w", oomdAvoid, c.freeze.dir, err)
}

// EndAvoidOOMD takes that back. It is no error if the group is gone.
func (c *Cgroup) EndAvoidOOMD() error {
	err := unix.Removexattr(c.freeze.dir, oomdAvoid)
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOENT) &&
		!errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("remove %s of cgroup %s: %w", oomdAvoid, c.freeze.dir, err)
	}
	return nil
}
