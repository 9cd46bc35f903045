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

// LowerOOM makes the OOM killer take a process as late as this process may request, and returns the
// previous adjustment. A value below the lowest one that was ever set with privilege for the process,
// mostly 0, takes CAP_SYS_RESOURCE. Error: fs.ErrNotExist when the process is gone.
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
	if errors.Is(err, fs.ErrPermission) { // it has the lowest permitted value
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

// SetOOM sets the score adjustment of a process.
func SetOOM(pid, value int) error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(value)), 0)
	if err != nil {
		return fmt.Errorf("set the OOM score adjustment of process %d: %w", pid, whenGone(err))
	}
	return nil
}

// oomdAvoid is the attribute that makes systemd-oomd take a group last (systemd.resource-control(5),
// ManagedOOMPreference=).
const oomdAvoid = "user.oomd_avoid"

// MayAvoidOOMD reports whether AvoidOOMD would set the attribute: not if somebody else has set it.
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

// AvoidOOMD makes systemd-oomd take the group last, unless somebody else has set its preference.
// systemd-oomd considers groups of version 2 only.
func (c *Cgroup) AvoidOOMD() error {
	if !c.freeze.unified {
		return nil
	}
	err := unix.Setxattr(c.freeze.dir, oomdAvoid, []byte("1"), unix.XATTR_CREATE)
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM): // not before Linux 5.7
		return nil
	}
	return fmt.Errorf("set %s of cgroup %s: %w", oomdAvoid, c.freeze.dir, err)
}

// EndAvoidOOMD undoes AvoidOOMD. A group that is gone is no error.
func (c *Cgroup) EndAvoidOOMD() error {
	err := unix.Removexattr(c.freeze.dir, oomdAvoid)
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOENT) &&
		!errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("remove %s of cgroup %s: %w", oomdAvoid, c.freeze.dir, err)
	}
	return nil
}
