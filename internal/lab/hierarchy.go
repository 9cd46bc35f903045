package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// cgroupTop is the directory of all labs in every cgroup hierarchy.
const cgroupTop = "godwit-lab"

// initLeaf is the cgroup of a node's own processes in a version 2 hierarchy: a cgroup that gives
// controllers to its children must not hold processes itself
// (Documentation/admin-guide/cgroup-v2.rst).
const initLeaf = "init"

// hierarchy is one cgroup file system of the machine. A machine has one of version 2, or several of version
// 1, or both.
type hierarchy struct {
	Mount   string // mount point
	V2      bool
	Options string // of version 1: mount options
}

// hierarchies finds the machine's cgroup file systems.
func hierarchies() ([]hierarchy, error) {
	mounts, err := kernel.OwnMounts()
	if err != nil {
		return nil, err
	}
	found := hierarchiesAmong(mounts)
	if len(found) == 0 {
		return nil, errors.New("no cgroup file system is mounted at its root on this machine")
	}
	return found, nil
}

// hierarchiesAmong returns those below cgroupMount, or all if there are none there: a killed CRIU leaves
// mounts of its own elsewhere, which come and go.
func hierarchiesAmong(mounts []kernel.Mount) (found []hierarchy) {
	below := func(m kernel.Mount) bool {
		return m.Point == cgroupMount || strings.HasPrefix(m.Point, cgroupMount+"/")
	}
	usual := slices.ContainsFunc(mounts, func(m kernel.Mount) bool {
		return strings.HasPrefix(m.Type, "cgroup") && m.Root == "/" && below(m)
	})
	seen := make(map[string]bool)
	for _, m := range mounts {
		h := hierarchy{Mount: m.Point, V2: m.Type == "cgroup2"}
		if (m.Type != "cgroup" && !h.V2) || m.Root != "/" || usual && !below(m) {
			continue
		}
		if !h.V2 {
			h.Options = cgroupOptions(m.Options)
		}
		if key := m.Type + h.Options; !seen[key] {
			seen[key] = true
			found = append(found, h)
		}
	}
	return found
}

// cgroupMount is where cgroups are mounted.
const cgroupMount = "/sys/fs/cgroup"

// envCgroups restricts nodes of a machine with both versions of cgroups to version 1 or 2.
const envCgroups = "GODWIT_LAB_CGROUPS"

// seenInNodes returns the machine's hierarchies that nodes have.
func seenInNodes(all []hierarchy) ([]hierarchy, error) {
	version := os.Getenv(envCgroups)
	if version == "" {
		return all, nil
	}
	var seen []hierarchy
	for _, h := range all {
		switch {
		case version == "1" && !h.V2:
			seen = append(seen, h)
		case version == "2" && h.V2:
			h.Mount = cgroupMount
			seen = append(seen, h)
		}
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("%s=%s: this machine has no such hierarchy", envCgroups, version)
	}
	return seen, nil
}

// cgroupOptions keeps the options of a version 1 hierarchy that identify it.
func cgroupOptions(options string) string {
	var kept []string
	for _, option := range strings.Split(options, ",") {
		switch {
		case option == "rw" || option == "ro" || strings.HasPrefix(option, "release_agent="):
		case strings.HasPrefix(option, "name="):
			kept = append(kept, "none", option)
		default:
			kept = append(kept, option)
		}
	}
	sort.Strings(kept)
	return strings.Join(kept, ",")
}

// path returns the cgroup of a machine of a lab, or of the lab if no machine is named.
func (h hierarchy) path(lab, machine string) string {
	return filepath.Join(h.Mount, cgroupTop, lab, machine)
}

// create makes the cgroup of a machine in this hierarchy and lets its processes use it.
func (h hierarchy) create(lab, machine string) error {
	dir := h.Mount
	for _, name := range []string{cgroupTop, lab, machine} {
		if h.V2 {
			enableControllers(dir)
		}
		parent := dir
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("cgroup: %w", err)
		}
		if h.V2 {
			continue // it inherits the parent's cpusets until a write
		}
		if err := copyCPUSet(parent, dir); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers gives a cgroup's children all of its controllers. Nodes do without a controller that
// cannot be given.
func enableControllers(dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, controller := range strings.Fields(string(data)) {
		_ = writeControl(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller)
	}
}

// copyCPUSet fills a version 1 cpuset, which starts empty and then accepts no process.
func copyCPUSet(from, to string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		target := filepath.Join(to, name)
		now, err := os.ReadFile(target)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || strings.TrimSpace(string(now)) != "" {
			return err
		}
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("cpuset: %w", err)
		}
		if value := strings.TrimSpace(string(data)); value != "" {
			if err := writeControl(target, value); err != nil {
				return fmt.Errorf("cpuset: %w", err)
			}
		}
	}
	// The kernel gives new cgroups inside the node the same.
	err := writeControl(filepath.Join(to, "cgroup.clone_children"), "1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cpuset: %w", err)
	}
	return nil
}

// enter moves this process into the cgroup of a machine.
func (h hierarchy) enter(lab, machine string) error {
	dir := h.path(lab, machine)
	if h.V2 {
		if leaf := filepath.Join(dir, initLeaf); isDirectory(leaf) {
			dir = leaf
		}
	}
	if err := writeControl(filepath.Join(dir, "cgroup.procs"), "0"); err != nil {
		return fmt.Errorf("enter cgroup: %w", err)
	}
	return nil
}

// writeControl writes to an existing file of a cgroup or sysctl.
func writeControl(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func isDirectory(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}
