package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup is the control group of a container: one directory in each hierarchy that is mounted (pure
// v2, pure v1, or both). Its methods act on the processes of the group and of all groups below it.
type Cgroup struct {
	dirs           []string // the group's directory in each hierarchy
	hierarchies    []string // the controllers of each of them, "" for version 2
	freeze         freezer  // the one that stops processes
	freezeOfOthers freezer  // one of version 1 beside it, which engines may use
}

// CgroupOf finds the cgroup of a process from /proc/PID/cgroup and the mounts of the calling
// process. Hierarchies in which the process shares its group with the caller are left out: they are
// not the container's. It fails if none is left that can freeze.
func CgroupOf(pid int) (*Cgroup, error) { return CgroupAround(pid, "") }

// CgroupAround is CgroupOf for a process that may be in a group within its container's: the name of
// the container's begins so. "": the process's own.
func CgroupAround(pid int, prefix string) (*Cgroup, error) {
	groups, err := groupsOf(pid)
	if err != nil {
		return nil, err
	}
	own, err := groupsOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	c, err := findCgroup(func(h hierarchy) (string, bool) {
		group := around(groups[h.controllers], prefix)
		return group, group != "" && !contains(group, own[h.controllers])
	})
	if err != nil {
		return nil, fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	return c, nil
}

// around is the innermost group, of a group and those in which it is, whose name begins with a
// prefix; the group itself if none does.
func around(group, prefix string) string {
	if prefix == "" {
		return group
	}
	for at := group; at != "/" && at != "."; at = filepath.Dir(at) {
		if at != "" && strings.HasPrefix(filepath.Base(at), prefix) {
			return at
		}
	}
	return group
}

// OpenCgroup finds a cgroup by its name below the mount points of the hierarchies, as in an OCI
// cgroupsPath, for example "/godwit/5f3a". It works when no process is in it any more. Error:
// fs.ErrNotExist when no hierarchy has it.
func OpenCgroup(name string) (*Cgroup, error) {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name || name == "/" {
		return nil, fmt.Errorf("open cgroup %q: want a clean absolute name such as /godwit/5f3a", name)
	}
	c, err := findCgroup(func(h hierarchy) (string, bool) { return filepath.Join(h.root, name), true })
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", name, err)
	}
	return c, nil
}

// JoinCgroupsOf moves the calling process into the cgroups of another, in every hierarchy in which
// they differ.
func JoinCgroupsOf(pid int) error {
	groups, err := groupsOf(pid)
	if err != nil {
		return err
	}
	own, err := groupsOf(os.Getpid())
	if err != nil {
		return err
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		group, ok := groups[h.controllers]
		if !ok || group == own[h.controllers] {
			continue
		}
		if dir, ok := h.dir(group); ok {
			if err := writeFile(filepath.Join(dir, "cgroup.procs"), "0"); err != nil {
				return fmt.Errorf("move to the cgroup of process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// JoinCgroups moves the calling process into groups of the hierarchies that are named: by the
// controllers of version 1, as in /proc/PID/cgroup; any other name, also a list of controllers, is
// version 2.
func JoinCgroups(groups map[string]string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	left := maps.Clone(groups)
	join := func(h hierarchy, name string) error {
		dir, ok := h.dir(left[name])
		delete(left, name)
		if !ok {
			return fmt.Errorf("move to cgroup %s of %q: it is not mounted here", groups[name], name)
		}
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), "0"); err != nil {
			return fmt.Errorf("move to cgroup %s of %q: %w", groups[name], name, err)
		}
		return nil
	}
	for _, h := range all {
		if _, named := left[h.controllers]; named && !h.unified {
			if err := join(h, h.controllers); err != nil {
				return err
			}
		}
	}
	for name := range left {
		i := slices.IndexFunc(all, func(h hierarchy) bool { return h.unified })
		if i < 0 {
			return fmt.Errorf("move to cgroup %s of %q: there is no such hierarchy", groups[name], name)
		}
		return join(all[i], name)
	}
	return nil
}

// findCgroup collects the directories of the group that name gives for each hierarchy, and chooses
// its freezer: that of version 2, in which processes can be killed while frozen, before that of
// version 1.
func findCgroup(name func(hierarchy) (string, bool)) (*Cgroup, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	c := &Cgroup{}
	for _, h := range all {
		group, ok := name(h)
		if !ok {
			continue
		}
		dir, ok := h.dir(group)
		if !ok || !exists(dir) {
			continue
		}
		c.dirs, c.hierarchies = append(c.dirs, dir), append(c.hierarchies, h.controllers)
		switch {
		case h.unified && exists(filepath.Join(dir, "cgroup.freeze")):
			c.freeze = freezer{dir: dir, unified: true}
		case slices.Contains(strings.Split(h.controllers, ","), "freezer"):
			c.freezeOfOthers = freezer{dir: dir}
		}
	}
	if c.freeze.dir == "" {
		c.freeze, c.freezeOfOthers = c.freezeOfOthers, freezer{}
	}
	if len(c.dirs) == 0 {
		return nil, fs.ErrNotExist
	}
	if c.freeze.dir == "" {
		return nil, fmt.Errorf("no cgroup of its own that can freeze: mount cgroup v2 or the v1 freezer: %w",
			ErrUnsupported)
	}
	return c, nil
}

// contains tells whether group is other or one of its ancestors.
func contains(group, other string) bool {
	return group == other || group == "/" || strings.HasPrefix(other, group+"/")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// FreezerDir is the absolute directory that freezes the group: what CRIU wants as freeze_cgroup.
func (c *Cgroup) FreezerDir() string { return c.freeze.dir }

// Dirs are the absolute directories of the group, one for each hierarchy.
func (c *Cgroup) Dirs() []string { return slices.Clone(c.dirs) }

// Procs are the processes of the group and of all below it, in the caller's pid namespace, in
// ascending order.
func (c *Cgroup) Procs() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(c.freeze.dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a group below went away meanwhile, or the group itself
		}
		if err != nil || !entry.IsDir() {
			return err
		}
		found, err := procsIn(path)
		pids = append(pids, found...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the processes of cgroup %s: %w", c.freeze.dir, err)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// procsIn reads the processes of one group, not of those below. A threaded group of version 2 has
// no list of its own (EOPNOTSUPP): its processes are in the list of the group above. A process
// outside of the caller's pid namespace is 0.
func procsIn(dir string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("%s/cgroup.procs: %w", dir, err)
		}
		if pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// removePatience is how long Remove waits for the kernel to let go of a group whose last process
// has just ended.
const removePatience = 2 * time.Second

// Remove removes the group's directories in all hierarchies, and those below. Processes must be
// gone. It is no error if there are none.
func (c *Cgroup) Remove() error {
	var failed []error
	for _, dir := range c.dirs {
		if err := removeTree(dir); err != nil {
			failed = append(failed, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(failed...)
}

// removeTree removes a group and those below, deepest first.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	pause := newBackoff()
	deadline := time.Now().Add(removePatience)
	for _, d := range slices.Backward(dirs) {
		for {
			err := unix.Rmdir(d)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return err
			}
			pause.wait()
		}
	}
	return nil
}

// CgroupAt is the cgroup of one directory of a hierarchy, for a caller who knows which one freezes.
func CgroupAt(dir string) (*Cgroup, error) {
	for file, unified := range map[string]bool{"cgroup.freeze": true, "freezer.state": false} {
		if exists(filepath.Join(dir, file)) {
			return &Cgroup{dirs: []string{dir}, freeze: freezer{dir: dir, unified: unified}}, nil
		}
	}
	if !exists(dir) {
		return nil, fmt.Errorf("open cgroup %s: %w", dir, fs.ErrNotExist)
	}
	return nil, fmt.Errorf("open cgroup %s: it cannot freeze: %w", dir, ErrUnsupported)
}
