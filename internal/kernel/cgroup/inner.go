package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/kernel"
)

// InnerGroups are the groups that a container has made within its own group in one hierarchy, parents
// before their children.
type InnerGroups struct {
	Hierarchy string       `json:"hierarchy"` // controllers, as in /proc/PID/cgroup; "" for version 2
	Groups    []InnerGroup `json:"groups"`
}

// InnerGroup is a group within a container's.
type InnerGroup struct {
	Path      string            `json:"path"`                // relative to the container's own group
	Processes []int             `json:"processes,omitempty"` // as the container sees them
	Values    map[string]string `json:"values,omitempty"`    // contents of files, by name
	// of the directory (".") and of files, where the kernel would set others
	Owners map[string]Owner `json:"owners,omitempty"`
}

// Bounds of inner groups, which may come from another node.
const (
	maxInnerGroups = 4096
	maxInnerPath   = 1024
	maxInnerValue  = 4096
)

// innerFiles are the files of a group that are carried, by the hierarchy's controllers, in the order in
// which they can be set. notCarried has the other limits.
var innerFiles = map[string][]string{
	"memory": {"memory.limit_in_bytes"}, "pids": {"pids.max"},
	"cpu":     {"cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"},
	"devices": {devicesList},
}

// devicesList is read from one file and written to two others.
const devicesList = "devices.list"

// filesOf returns the files of a hierarchy's groups that InnerGroup.Values may have.
func filesOf(hierarchy string) (files []string) {
	for controller := range strings.SplitSeq(hierarchy, ",") {
		files = append(files, innerFiles[controller]...)
	}
	return files
}

// Inner lists the groups within this one, of a container whose processes are frozen. It leaves out
// hierarchies in which none of these groups has a process. Error: ErrUnsupported if they cannot be made
// again.
func (c *Cgroup) Inner() ([]InnerGroups, error) {
	var all []InnerGroups
	for i, dir := range c.dirs {
		found, err := innerOf(dir, c.hierarchies[i])
		if err != nil {
			return nil, fmt.Errorf("groups within cgroup %s: %w", dir, err)
		}
		if slices.ContainsFunc(found, func(one InnerGroup) bool { return len(one.Processes) > 0 }) {
			all = append(all, InnerGroups{Hierarchy: c.hierarchies[i], Groups: found})
		}
	}
	if err := CheckInner(all); err != nil { // the target would refuse them
		return nil, fmt.Errorf("%w: %w", err, kernel.ErrUnsupported)
	}
	return all, nil
}

// innerOf lists the groups below a directory of a hierarchy.
func innerOf(base, hierarchy string) ([]InnerGroup, error) {
	var found []InnerGroup
	var used bool
	var unable error
	seen := map[int]bool{}
	err := filepath.WalkDir(base, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if unable == nil {
			unable = delegates(path)
		}
		pids, err := procsIn(path)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if seen[pid] && unable == nil {
				unable = fmt.Errorf("threads of process %d are in several groups: %w", pid,
					kernel.ErrUnsupported)
			}
			seen[pid] = true
		}
		if path == base {
			return nil
		}
		if unable == nil {
			unable = refuseSettings(base, path)
		}
		one, err := innerGroup(base, path, hierarchy, pids)
		found, used = append(found, one), used || len(one.Processes) > 0
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case used && unable != nil:
		return nil, unable
	case len(found) > maxInnerGroups:
		return nil, fmt.Errorf("%d groups: %w", len(found), kernel.ErrUnsupported)
	}
	return found, nil
}

// delegates refuses groups of version 2 that enable controllers for nested groups, and threads of one
// process in several groups.
func delegates(dir string) error {
	given, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err == nil && len(strings.TrimSpace(string(given))) > 0 {
		return fmt.Errorf("it delegates controllers to its children: %s: %w",
			strings.TrimSpace(string(given)), kernel.ErrUnsupported)
	}
	kind, err := os.ReadFile(filepath.Join(dir, "cgroup.type"))
	if err == nil && strings.TrimSpace(string(kind)) != "domain" {
		return fmt.Errorf("its type is %s: %w", strings.TrimSpace(string(kind)), kernel.ErrUnsupported)
	}
	return nil
}

func innerGroup(base, path, hierarchy string, pids []int) (InnerGroup, error) {
	relative, err := filepath.Rel(base, path)
	if err != nil {
		return InnerGroup{}, err
	}
	one := InnerGroup{Path: relative}
	if one.Owners, err = ownersOf(path); err != nil {
		return one, err
	}
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		if err != nil {
			return one, err
		}
		one.Processes = append(one.Processes, process.NamespaceID)
	}
	for _, file := range filesOf(hierarchy) {
		value, err := os.ReadFile(filepath.Join(path, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return one, err
		}
		if one.Values == nil {
			one.Values = map[string]string{}
		}
		one.Values[file] = strings.TrimSpace(string(value))
	}
	return one, nil
}

// CheckInner refuses groups that another node may not request.
func CheckInner(all []InnerGroups) error {
	count := 0
	for _, one := range all {
		allowed := filesOf(one.Hierarchy)
		for _, group := range one.Groups {
			if count++; count > maxInnerGroups {
				return fmt.Errorf("more than %d groups", maxInnerGroups)
			}
			if !filepath.IsLocal(group.Path) || filepath.Clean(group.Path) != group.Path ||
				group.Path == "." || len(group.Path) > maxInnerPath {
				return fmt.Errorf("group %.80q: its name leads elsewhere", group.Path)
			}
			if err := checkOwners(group.Owners); err != nil {
				return fmt.Errorf("group %.80q of %.40q: %w", group.Path, one.Hierarchy, err)
			}
			for name, value := range group.Values {
				if !slices.Contains(allowed, name) || len(value) > maxInnerValue {
					return fmt.Errorf("group %.80q of %.40q: it has %.40q", group.Path, one.Hierarchy, name)
				}
			}
		}
	}
	return nil
}

// dirOf returns the group's directory in a hierarchy.
func (c *Cgroup) dirOf(hierarchy string) (string, error) {
	if i := slices.Index(c.hierarchies, hierarchy); i >= 0 {
		return c.dirs[i], nil
	}
	return "", fmt.Errorf("there is no hierarchy of cgroups %.40q here: %w", hierarchy, kernel.ErrUnsupported)
}

// MakeInner makes groups within this one, without processes, and limits their devices, which is impossible
// once there are nested groups. CheckInner has passed them.
func (c *Cgroup) MakeInner(all []InnerGroups) error {
	for _, one := range all {
		base, err := c.dirOf(one.Hierarchy)
		if err != nil {
			return err
		}
		for _, group := range one.Groups {
			if err := group.make(filepath.Join(base, group.Path)); err != nil {
				return fmt.Errorf("make a group within cgroup %s: %w", base, err)
			}
		}
	}
	return nil
}

func (g InnerGroup) make(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := setOwners(dir, g.Owners); err != nil {
		return err
	}
	value, limited := g.Values[devicesList]
	if !limited {
		return nil
	}
	return setInner(dir, devicesList, value)
}

// FillInner moves processes of this group to their nested groups, and sets all other limits.
func (c *Cgroup) FillInner(all []InnerGroups) error {
	pids, err := c.Procs()
	if err != nil {
		return err
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return err
	}
	processes := map[int]int{}
	for _, pid := range pids {
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		// the restoring process does not belong to the container
		if process, failed := kernel.ReadProcess(pid); err == nil && failed == nil && space != own {
			processes[process.NamespaceID] = pid
		}
	}
	for _, one := range all {
		base, err := c.dirOf(one.Hierarchy)
		if err != nil {
			return err
		}
		for _, group := range one.Groups {
			if err := group.fill(filepath.Join(base, group.Path), one.Hierarchy, processes); err != nil {
				return fmt.Errorf("fill the groups within cgroup %s: %w", base, err)
			}
		}
	}
	return nil
}

func (g InnerGroup) fill(dir, hierarchy string, processes map[int]int) error {
	for _, name := range g.Processes {
		pid, is := processes[name]
		if !is {
			return fmt.Errorf("process %d of the container is not there", name)
		}
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), fmt.Sprint(pid)); err != nil {
			return err
		}
	}
	// the kernel refuses a quota above that of the parent group, if the periods differ
	for _, name := range filesOf(hierarchy) {
		value, is := g.Values[name]
		if name == devicesList || !is {
			continue
		}
		if err := setInner(dir, name, value); err != nil {
			return fmt.Errorf("%s = %.80q: %w", name, value, err)
		}
	}
	return nil
}

// setInner sets one value. A list of devices contains what is allowed of the parent group's devices. A file
// that already has its value is left alone.
func setInner(dir, name, value string) error {
	have, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || strings.TrimSpace(string(have)) == value {
		return err
	}
	if name != devicesList {
		return writeFile(filepath.Join(dir, name), value)
	}
	if err := writeFile(filepath.Join(dir, "devices.deny"), "a"); err != nil {
		return err
	}
	for line := range strings.Lines(value) {
		if err := writeFile(filepath.Join(dir, "devices.allow"), strings.TrimSpace(line)); err != nil {
			return err
		}
	}
	return nil
}
