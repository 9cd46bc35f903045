package cgroup

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

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
