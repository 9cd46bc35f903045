package examine

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
)

// checkTask finds obstacles of the process itself.
func (x *examination) checkTask(t *task) []finding {
	var found []finding
	if t.Tracer != 0 {
		found = append(found, finding{noFD, fmt.Sprintf("traced by process %d", t.Tracer),
			"CRIU traces the process itself, and only one tracer is possible",
			"end the debugger, strace or profiler"})
	}
	if t.State == 'Z' && t.Threads > 1 {
		found = append(found, finding{noFD, "first thread has ended, others run",
			"CRIU cannot dump a process whose first thread called pthread_exit",
			"let the first thread wait for the others, or restart the process"})
	}
	if trapped, err := kernel.HasPending(t.PID, unix.SIGTRAP); err == nil && trapped {
		found = append(found, finding{noFD, "signal SIGTRAP waits, blocked",
			"CRIU stops processes by this signal, and cannot dump one that waits already",
			"end the debugger or profiler, or try again when the application has taken the signal"})
	}
	if x.isLostSession(t) {
		found = append(found, finding{noFD, fmt.Sprintf("in session %d, whose leader has ended", t.Session),
			"CRIU can restore that only for children of the container's first process and of the " +
				"session's processes",
			"end the process, or restart it without a process between it and the first one"})
	}
	return found
}

// isLostSession reports whether CRIU cannot find from whom a process got its session (criu/pstree.c of 4.2,
// prepare_pstree_ids). For children of the first process, CRIU makes session leaders that end again.
func (x *examination) isLostSession(t *task) bool {
	parent := x.byPID[t.Parent]
	if t.Session == 0 || t.Session == t.NamespaceID || parent == nil || parent == x.root ||
		parent.Session == t.Session {
		return false
	}
	for range x.tasks { // bounded, because the list was read while processes changed their parents
		if parent == nil || parent.NamespaceID == t.Session {
			return parent == nil
		}
		parent = x.byPID[parent.Parent]
	}
	return false
}

// nestedKinds are the namespaces that CRIU requires all processes to share with the first one; mount and
// network namespaces may differ.
var nestedKinds = [...]string{"pid", "user", "ipc", "uts", "cgroup", "time"}

// checkNamespaces finds namespaces and cgroups below those of the container.
func (x *examination) checkNamespaces(t *task) ([]finding, error) {
	var found []finding
	for _, kind := range nestedKinds {
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", t.PID, kind))
		if err != nil {
			return found, err
		}
		root, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", x.root.PID, kind))
		if err != nil {
			return found, err
		}
		if own != root {
			found = append(found, finding{noFD, kind + " namespace of its own inside the container",
				"CRIU cannot dump nested " + kind + " namespaces",
				"end the inner container or sandbox, or turn sandboxing off in the application"})
		}
	}
	if x.subject.Groups {
		return found, nil
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", t.PID))
	if err != nil {
		return found, err
	}
	root, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", x.root.PID))
	if err != nil {
		return found, err
	}
	if string(own) != string(root) {
		found = append(found, finding{noFD, "in another cgroup than the container's first process",
			"cgroups made inside a container are not made again at the target",
			"end what makes cgroups in the container, for example an inner systemd"})
	}
	return found, nil
}

// checkMemory finds mappings that cannot be dumped.
func (x *examination) checkMemory(t *task) ([]finding, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", t.PID))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	seen := map[string]bool{}
	var found []finding
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), " ", 6)
		if len(fields) < 6 {
			continue
		}
		name := strings.TrimSpace(fields[5])
		if seen[name] {
			continue
		}
		seen[name] = true
		if bad, ok := badMapping(t.PID, fields[0], name); ok {
			found = append(found, bad)
		} else if bad := x.coveredAt(fmt.Sprintf("/proc/%d/map_files/%s", t.PID, fields[0]), asFile,
			name); bad.what != "" {
			found = append(found, bad)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, unix.ESRCH) {
		return found, err
	}
	return found, nil
}

// badMapping reports whether a line of /proc/PID/maps is a mapping that CRIU cannot dump.
func badMapping(pid int, addresses, name string) (finding, bool) {
	for prefix, what := range map[string]string{
		"anon_inode:": "memory of " + anonymousKind(name),
		"/secretmem":  "secret memory (memfd_secret)",
	} {
		if strings.HasPrefix(name, prefix) {
			return finding{noFD, what, "CRIU cannot dump this kind of memory",
				"turn the feature off in the application"}, true
		}
	}
	if !strings.HasPrefix(name, "/dev/") || strings.HasPrefix(name, "/dev/shm/") ||
		strings.HasPrefix(name, "/dev/zero") {
		return finding{}, false
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d/map_files/%s", pid, addresses))
	if err != nil || info.Mode()&fs.ModeDevice == 0 {
		return finding{}, false
	}
	return finding{noFD, "memory of device " + name, "the memory of a device cannot be moved",
		"run the container without the device"}, true
}

// dumpable are the file systems that CRIU mounts again (criu/filesystems.c of 4.2). It supports overlay,
// btrfs and aufs as root file systems only: it dumps an overlay that was mounted inside, but fails to
// restore it.
var dumpable = [...]string{"proc", "sysfs", "devtmpfs", "binfmt_misc", "tmpfs", "devpts", "pstore", "mqueue",
	"securityfs", "fusectl", "debugfs", "tracefs", "cgroup", "cgroup2", "autofs", "rpc_pipefs"}

// collectMounts reads the mounts of a mount namespace.
func (x *examination) collectMounts(pid int, space string) error {
	mounts, err := mountsOf(pid)
	for id, m := range mounts {
		x.mounts[id], x.spaces[id] = m, space
	}
	return err
}

// mountsOf reads the mounts that a process sees, by ID.
func mountsOf(pid int) (map[string]kernel.Mount, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string]kernel.Mount{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if m, ok := kernel.ParseMount(lines.Text()); ok {
			all[m.ID] = m
		}
	}
	return all, lines.Err()
}

// wholeContainer finds problems that belong to no single process, and reports them for the first process.
func (x *examination) wholeContainer() ([]Problem, error) {
	mounts, err := mountsOf(x.root.PID)
	if err != nil {
		if descriptors.IsGone(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("examine the mounts of process %d: %w", x.root.PID, err)
	}
	var found []finding
	root := rootDevice(mounts)
	for _, m := range mounts {
		if m.Type == "mqueue" {
			found = append(found, queues(x.root.PID, m.Point)...)
		}
		if m.Point == "/" {
			found = append(found, placeOfRoot(m.Flags, fmt.Sprintf("/proc/%d/root", x.root.PID))...)
		}
		if x.subject.Mounts == nil || m.Device == root || slices.Contains(dumpable[:], m.Type) ||
			x.isExternal(m.Point) {
			continue
		}
		found = append(found, finding{noFD, fmt.Sprintf("mount of %s (%s)", m.Point, m.Type),
			"CRIU cannot dump a mount of this file system that was made inside the container",
			"mount it from outside as a volume, or unmount it"})
	}
	found = append(found, x.inFlight()...)
	slices.SortFunc(found, func(a, b finding) int { return strings.Compare(a.what, b.what) })
	return problemsOf(x.root, found), nil
}

// placeOfRoot finds that CRIU would have no place for the old root directory: CRIU uses /tmp, and makes a
// directory if there is none (criu/mount.c, cr_pivot_root).
func placeOfRoot(flags, root string) []finding {
	if !slices.Contains(strings.Split(flags, ","), "ro") {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(root, "tmp")); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return []finding{{noFD, "root file system", "it can only be read, and has no /tmp, without which CRIU " +
		"cannot restore it", "give its image a directory /tmp"}}
}

func rootDevice(mounts map[string]kernel.Mount) string {
	for _, m := range mounts {
		if m.Point == "/" {
			return m.Device
		}
	}
	return ""
}

func (x *examination) isExternal(point string) bool {
	return slices.Contains(x.subject.Mounts, point)
}

// queues finds POSIX message queues, which CRIU does not carry.
func queues(pid int, point string) []finding {
	entries, err := os.ReadDir(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), point))
	if err != nil {
		return nil // hidden by another mount or gone: then no process reaches it by name
	}
	var found []finding
	for _, e := range entries {
		found = append(found, finding{noFD, "POSIX message queue /" + e.Name(), "CRIU cannot dump message " +
			"queues",
			"remove the queue (mq_unlink)"})
	}
	return found
}
