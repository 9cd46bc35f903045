package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// gone checks that a node has nothing of a container: no process, mount, network namespace, cgroup or file.
func (c *container) gone(node string) {
	c.t.Helper()
	var left []string
	labtest.Within(patience, func() bool {
		left = traces(node, c.id)
		return len(left) == 0
	})
	if len(left) > 0 {
		c.t.Errorf("left of %s on %s: %q", c.name, node, left)
	}
}

// traces lists what a node has of a container.
func traces(node, id string) []string {
	root, pid, err := place(node)
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, pattern := range []string{
		"run/godwit/containers/" + id, "run/godwit/netns/" + id, "run/godwit/runc/" + id, "var/lib/godwit/containers/" + id,
		"sys/fs/cgroup/*/" + id, "sys/fs/cgroup/*/*/" + id, "sys/fs/cgroup/*/*/*/" + id,
	} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return []string{err.Error()}
		}
		found = append(found, paths...)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return []string{err.Error()}
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, id) {
			found = append(found, "mount "+line)
		}
	}
	for process, arguments := range processes(pid) {
		if strings.Contains(arguments, id) {
			found = append(found, fmt.Sprintf("process %d: %s", process, arguments))
		}
	}
	return found
}

func place(node string) (root string, pid int, err error) {
	if root, err = world.lab.Root(node); err == nil {
		pid, err = world.lab.PID(node)
	}
	return root, pid, err
}

// processes lists the processes of a node, those of its containers as well: all below its init.
func processes(init int) map[int]string {
	parents, arguments := map[int]int{}, map[int]string{}
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil // the pattern is constant and valid
	}
	for _, directory := range directories {
		var pid, parent int
		stat, err := os.ReadFile(directory + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		after := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
		var letter string
		if _, err := fmt.Sscan(after, &letter, &parent); err != nil {
			continue
		}
		if _, err := fmt.Sscan(filepath.Base(directory), &pid); err != nil {
			continue
		}
		line, _ := os.ReadFile(directory + "/cmdline") // ended meanwhile: no arguments
		parents[pid], arguments[pid] = parent, strings.ReplaceAll(string(line), "\x00", " ")
	}
	below := map[int]string{}
	for pid := range parents {
		for at := parents[pid]; at != 0; at = parents[at] {
			if at == init {
				below[pid] = arguments[pid]
				break
			}
		}
	}
	return below
}

// view is what a node has of things that containers and migrations add to, one line each.
type view []string

func viewLab() (map[string]view, error) {
	views := map[string]view{}
	for _, node := range nodes() {
		v, err := viewNode(node)
		if err != nil {
			return nil, err
		}
		views[node] = v
	}
	return views, nil
}

func viewNode(node string) (view, error) {
	root, pid, err := place(node)
	if err != nil {
		return nil, err
	}
	var v view
	for process, arguments := range processes(pid) {
		if !strings.HasPrefix(arguments, "godwit lab-") && !strings.Contains(arguments, "lab-child") {
			v = append(v, fmt.Sprintf("process %d %s", process, arguments))
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		v = append(v, "mount at "+fields[4])
	}
	for _, args := range [][]string{
		{"ip", "-o", "link"}, {"ip", "route", "show", "table", "all"}, {"ip", "rule"}, {"nft", "list", "ruleset"},
	} {
		out, err := world.lab.Exec(context.Background(), node, args...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			v = append(v, args[0]+" "+strings.TrimSpace(line))
		}
	}
	directories, err := viewDirectories(root)
	return append(v, directories...), err
}

// viewDirectories lists the directories in which migrations and containers have theirs, and all cgroups.
func viewDirectories(root string) (view, error) {
	var v view
	for _, pattern := range []string{
		"run/godwit/*/*", "var/lib/godwit/containers/*", "var/lib/godwit/volumes/*", "var/lib/godwit/migrations/*/images",
	} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		v = append(v, paths...)
	}
	err := filepath.WalkDir(filepath.Join(root, "sys/fs/cgroup"), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err == nil && d.IsDir() {
			v = append(v, "cgroup "+path)
		}
		return err
	})
	return v, err
}

// leftInLab lists what the nodes have and had not before. What goes away a moment after a command has ended is waited
// for.
func leftInLab(before map[string]view) []string {
	var left []string
	labtest.Within(patience, func() bool {
		left = nil
		for _, node := range nodes() {
			now, err := viewNode(node)
			if err != nil {
				left = append(left, err.Error())
			}
			for _, line := range now {
				if !slices.Contains(before[node], line) && !ofLXC(line) {
					left = append(left, node+": "+line)
				}
			}
		}
		return len(left) == 0
	})
	return left
}

// ofLXC tells what LXC makes on a node at its first container, and keeps, and the tests' place for its containers.
func ofLXC(line string) bool {
	return strings.HasSuffix(line, "/lxc.pivot") || strings.HasPrefix(line, "mount at /var/lib/lxc")
}
