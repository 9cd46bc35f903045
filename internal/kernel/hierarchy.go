package kernel

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Hierarchy is one mounted cgroup hierarchy.
type Hierarchy struct {
	Unified     bool   // version 2
	Controllers string // of version 1, as in /proc/PID/cgroup: "freezer", "cpu,cpuacct", "name=systemd"
	mount       string // mount point
	Root        string // group of the hierarchy that is mounted there
}

// HasController reports whether a hierarchy of version 1 with this controller is mounted.
func HasController(controller string) (bool, error) {
	all, err := Hierarchies()
	return slices.ContainsFunc(all, func(h Hierarchy) bool {
		return !h.Unified && slices.Contains(strings.Split(h.Controllers, ","), controller)
	}), err
}

// Unified is the name of version 2 in CgroupHierarchies.
const Unified = "unified"

// CgroupHierarchies names this machine's hierarchies, those of version 1 by their controllers, as in
// /proc/PID/cgroup.
func CgroupHierarchies() ([]string, error) {
	all, err := Hierarchies()
	names := make([]string, 0, len(all))
	for _, h := range all {
		if h.Unified {
			h.Controllers = Unified
		}
		names = append(names, h.Controllers)
	}
	slices.Sort(names)
	return names, err
}

// Hierarchies lists the cgroup hierarchies mounted in the caller's mount namespace, each once.
func Hierarchies() ([]Hierarchy, error) {
	mounts, err := OwnMounts()
	if err != nil {
		return nil, fmt.Errorf("list cgroup mounts: %w", err)
	}
	var all []Hierarchy
	seen := map[string]bool{}
	for _, m := range mounts {
		h, ok := cgroupHierarchy(m)
		if ok && !seen[h.Controllers] {
			seen[h.Controllers] = true
			all = append(all, h)
		}
	}
	return all, nil
}

// Mount is one line of /proc/PID/mountinfo.
type Mount struct {
	ID      string
	Parent  string // id of the mount that it is on
	Device  string // major:minor
	Root    string // directory of the file system that is mounted
	Point   string // where, as the process sees it
	Type    string // of the file system
	Source  string
	Options string // of the super block
	Flags   string // of the mount: ro, nosuid and the like
}

// ReadMounts lists the mounts that a process sees, in the order of mountinfo.
func ReadMounts(pid int) ([]Mount, error) { return readMounts(strconv.Itoa(pid)) }

// OwnMounts lists the mounts that this process sees, even if /proc shows another PID namespace.
func OwnMounts() ([]Mount, error) { return readMounts("self") }

func readMounts(process string) ([]Mount, error) {
	f, err := os.Open("/proc/" + process + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	defer f.Close()
	var all []Mount
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20) // an overlay of many layers has a long line
	for lines.Scan() {
		if m, ok := ParseMount(lines.Text()); ok {
			all = append(all, m)
		}
	}
	return all, lines.Err()
}

// ParseMount reads one line of /proc/PID/mountinfo (proc_pid_mountinfo(5)).
func ParseMount(line string) (Mount, bool) {
	before, after, ok := strings.Cut(line, " - ")
	mount, fs := strings.Fields(before), strings.Fields(after)
	if !ok || len(mount) < 6 || len(fs) < 3 {
		return Mount{}, false
	}
	return Mount{ID: mount[0], Parent: mount[1], Device: mount[2], Root: unescape(mount[3]),
		Point: unescape(mount[4]), Type: fs[0],
		Source: unescape(fs[1]), Options: fs[2], Flags: mount[5]}, true
}

// cgroupHierarchy returns the hierarchy of a mount, if it is one.
func cgroupHierarchy(m Mount) (Hierarchy, bool) {
	switch m.Type {
	case "cgroup2":
		return Hierarchy{Unified: true, Root: m.Root, mount: m.Point}, true
	case "cgroup":
		return Hierarchy{Controllers: controllersOf(m.Options), Root: m.Root, mount: m.Point}, true
	default:
		return Hierarchy{}, false
	}
}

// controllersOf picks the controllers from the super block options of a version 1 mount, in the
// order and spelling of /proc/PID/cgroup.
func controllersOf(options string) string {
	notControllers := map[string]bool{"rw": true, "ro": true, "xattr": true, "noprefix": true,
		"clone_children": true, "none": true, "favordynmods": true, "cpuset_v2_mode": true}
	var named []string
	for o := range strings.SplitSeq(options, ",") {
		if !notControllers[o] && !strings.HasPrefix(o, "release_agent=") {
			named = append(named, o)
		}
	}
	return strings.Join(named, ",")
}

// unescape undoes the octal escapes of mountinfo (space, tab, newline, backslash).
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Dir returns the directory of group in the hierarchy; false if the mount does not show it.
func (h Hierarchy) Dir(group string) (string, bool) {
	rel, err := filepath.Rel(h.Root, group)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", false
	}
	return filepath.Join(h.mount, rel), true
}

// GroupsOf reads a process's group in each hierarchy. The key is the controllers, "" for version 2.
func GroupsOf(pid int) (map[string]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("read cgroups of process %d: %w", pid, err)
	}
	return parseGroups(string(data)), nil
}

// parseGroups reads the content of /proc/PID/cgroup (cgroups(7)). A group that was removed is
// marked "(deleted)".
func parseGroups(text string) map[string]string {
	groups := map[string]string{}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && strings.HasPrefix(parts[2], "/") {
			groups[parts[1]] = strings.TrimSuffix(parts[2], " (deleted)")
		}
	}
	return groups
}
