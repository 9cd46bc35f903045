package cgroup

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

	"github.com/godwit/godwit/internal/kernel"
)

// Cgroup is the control group of a container: one directory in each mounted hierarchy (pure v2, pure v1, or
// both). Its methods act on the processes of the group and of all nested groups.
type Cgroup struct {
	dirs           []string // the group's directory in each hierarchy
	hierarchies    []string // the controllers of each of them, "" for version 2
	freeze         freezer  // stops processes
	freezeOfOthers freezer  // of version 1, if also mounted, which engines may use
}

// Of finds the cgroup of a process from /proc/PID/cgroup and the mounts of the calling process. It
// leaves out hierarchies in which the process shares its group with the caller, because those groups are
// not the container's. It fails if no remaining hierarchy can freeze.
func Of(pid int) (*Cgroup, error) { return Around(pid, "") }

// Around is CgroupOf for a process that may be in a group within its container's, whose name begins
// with prefix. "": the process's own group.
func Around(pid int, prefix string) (*Cgroup, error) {
	groups, err := kernel.GroupsOf(pid)
	if err != nil {
		return nil, err
	}
	own, err := kernel.GroupsOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	c, err := find(func(h kernel.Hierarchy) (string, bool) {
		group := around(groups[h.Controllers], prefix)
		return group, group != "" && !contains(group, own[h.Controllers])
	})
	if err != nil {
		return nil, fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	return c, nil
}

// around returns the innermost of a group and its ancestors whose name begins with a prefix; the group
// itself if none does.
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

// Open finds a cgroup by its name below the mount points of the hierarchies, as in an OCI
// cgroupsPath, for example "/godwit/5f3a". The group may have no process any more. Error: fs.ErrNotExist
// when no hierarchy has it.
func Open(name string) (*Cgroup, error) {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name || name == "/" {
		return nil, fmt.Errorf("open cgroup %q: want a clean absolute name such as /godwit/5f3a", name)
	}
	c, err := find(func(h kernel.Hierarchy) (string, bool) { return filepath.Join(h.Root, name), true })
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", name, err)
	}
	return c, nil
}

// JoinOf moves the calling process into the cgroups of another process, in every hierarchy in which
// they differ.
func JoinOf(pid int) error {
	groups, err := kernel.GroupsOf(pid)
	if err != nil {
		return err
	}
	own, err := kernel.GroupsOf(os.Getpid())
	if err != nil {
		return err
	}
	all, err := kernel.Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		group, ok := groups[h.Controllers]
		if !ok || group == own[h.Controllers] {
			continue
		}
		if dir, ok := h.Dir(group); ok {
			if err := writeFile(filepath.Join(dir, "cgroup.procs"), "0"); err != nil {
				return fmt.Errorf("move to the cgroup of process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// Join moves the calling process into groups, by hierarchy. A hierarchy of version 1 is named by its
// controllers, as in /proc/PID/cgroup; any other name, including a list of controllers, means version 2.
func Join(groups map[string]string) error {
	all, err := kernel.Hierarchies()
	if err != nil {
		return err
	}
	left := maps.Clone(groups)
	join := func(h kernel.Hierarchy, name string) error {
		dir, ok := h.Dir(left[name])
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
		if _, named := left[h.Controllers]; named && !h.Unified {
			if err := join(h, h.Controllers); err != nil {
				return err
			}
		}
	}
	for name := range left {
		i := slices.IndexFunc(all, func(h kernel.Hierarchy) bool { return h.Unified })
		if i < 0 {
			return fmt.Errorf("move to cgroup %s of %q: there is no such hierarchy", groups[name], name)
		}
		return join(all[i], name)
	}
	return nil
}

// find collects the directories of the group that name returns for each hierarchy, and chooses its
// freezer. It prefers that of version 2, in which processes can be killed while frozen, to that of version
// 1.
func find(name func(kernel.Hierarchy) (string, bool)) (*Cgroup, error) {
	all, err := kernel.Hierarchies()
	if err != nil {
		return nil, err
	}
	c := &Cgroup{}
	for _, h := range all {
		group, ok := name(h)
		if !ok {
			continue
		}
		dir, ok := h.Dir(group)
		if !ok || !exists(dir) {
			continue
		}
		c.dirs, c.hierarchies = append(c.dirs, dir), append(c.hierarchies, h.Controllers)
		switch {
		case h.Unified && exists(filepath.Join(dir, "cgroup.freeze")):
			c.freeze = freezer{dir: dir, unified: true}
		case slices.Contains(strings.Split(h.Controllers, ","), "freezer"):
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
			kernel.ErrUnsupported)
	}
	return c, nil
}

// contains reports whether group is other or one of its ancestors.
func contains(group, other string) bool {
	return group == other || group == "/" || strings.HasPrefix(other, group+"/")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// FreezerDir returns the absolute directory that freezes the group, for CRIU's freeze_cgroup.
func (c *Cgroup) FreezerDir() string { return c.freeze.dir }

// Dirs returns the absolute directories of the group, one for each hierarchy.
func (c *Cgroup) Dirs() []string { return slices.Clone(c.dirs) }

// Procs returns the processes of the group and of all nested groups, in the caller's PID namespace, in
// ascending order.
func (c *Cgroup) Procs() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(c.freeze.dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a nested group, or the group itself, was removed meanwhile
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

// procsIn reads the processes of one group without nested groups. A threaded group of version 2 has no list
// of its own (EOPNOTSUPP): its processes are in the list of the parent group. A process outside the
// caller's PID namespace is 0.
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

// removePatience is how long Remove waits for the kernel to release a group whose last process has just
// ended.
const removePatience = 2 * time.Second

// Remove removes the directories of the group and of nested groups in all hierarchies. Processes must be
// gone. Missing directories are no error.
func (c *Cgroup) Remove() error {
	var failed []error
	for _, dir := range c.dirs {
		if err := removeTree(dir); err != nil {
			failed = append(failed, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(failed...)
}

// removeTree removes a group and its nested groups, deepest first.
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
	pause := kernel.NewBackoff()
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
			pause.Wait()
		}
	}
	return nil
}

// At returns the cgroup of one directory of a hierarchy, for a caller that knows which directory
// freezes.
func At(dir string) (*Cgroup, error) {
	for file, unified := range map[string]bool{"cgroup.freeze": true, "freezer.state": false} {
		if exists(filepath.Join(dir, file)) {
			return &Cgroup{dirs: []string{dir}, freeze: freezer{dir: dir, unified: unified}}, nil
		}
	}
	if !exists(dir) {
		return nil, fmt.Errorf("open cgroup %s: %w", dir, fs.ErrNotExist)
	}
	return nil, fmt.Errorf("open cgroup %s: it cannot freeze: %w", dir, kernel.ErrUnsupported)
}
