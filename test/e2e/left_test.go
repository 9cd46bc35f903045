package e2e

import (
	"context"
	"fmt"
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

// traces lists a node's traces of a container.
func traces(node, id string) []string {
	root, pid, err := place(node)
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, pattern := range []string{
		"run/godwit/containers/" + id, "run/godwit/netns/" + id, "run/godwit/runc/" + id,
		"var/lib/godwit/containers/" + id,
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
	for process, arguments := range labtest.Processes(pid) {
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

// view lists a node's objects to which containers and migrations add, one line each.
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
	return labtest.View(context.Background(), world.lab, node,
		"run/godwit/*/*", "var/lib/godwit/containers/*", "var/lib/godwit/volumes/*",
		"var/lib/godwit/migrations/*/images")
}

// leftInLab lists the nodes' new objects. It waits for objects that disappear a moment after a command has
// ended.
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

// ofLXC reports whether a line is about permanent objects of a node's first LXC container, or the tests'
// directory for its containers.
func ofLXC(line string) bool {
	return strings.HasSuffix(line, "/lxc.pivot") || strings.HasPrefix(line, "mount at /var/lib/lxc")
}
