package volumes

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
)

// Machine is this node, as far as volumes must not touch it.
type Machine struct {
	Name             string // of the node
	StateDir, RunDir string // the agent's own directories
}

// ExamineArriving finds host directories to which nothing may be moved, or which a container that
// another node describes must not have: they are parts of this machine.
func (m Machine) ExamineArriving(definition engine.Definition) []migration.Problem {
	var problems []migration.Problem
	for _, v := range definition.Volumes {
		if v.Sort() != engine.Bind {
			continue
		}
		add := func(why string) {
			problems = append(problems, migration.Problem{What: v.String(),
				Why: "it is a part of " + m.Name + ", and " + why, Remedy: "use another directory"})
		}
		switch {
		case !v.Stays && m.owns(v.Source):
			add("nothing is moved there")
		case v.Stays && m.keptFrom(v):
			add("containers from other nodes must not use it")
		}
	}
	return problems
}

// keptFrom tells of host directories that a container from another node does not get, though
// nothing is moved there: whoever can write there, or read what is secret there, has the machine.
// What every program may read it may, too.
func (m Machine) keptFrom(v engine.Volume) bool {
	// What engines and people give to containers; links of the machine's own lead from some of it.
	given := []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/localtime", "/etc/timezone",
		"/etc/ssl/certs"}
	public := []string{"/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr"}
	if v.ReadOnly && slices.Contains(given, v.Source) {
		return false
	}
	sources := []string{v.Source}
	if there, err := filepath.EvalSymlinks(v.Source); err == nil {
		sources = append(sources, there) // it may lead elsewhere
	}
	return slices.ContainsFunc(sources, func(source string) bool {
		within := func(directory string) bool { return engine.Within(source, directory) }
		if v.ReadOnly && slices.ContainsFunc(public, within) {
			return false
		}
		return m.owns(source) || slices.ContainsFunc(secret, within) || within(m.StateDir) ||
			within(m.RunDir)
	})
}

// secret are directories of root's, of engines and of what starts programs.
var secret = []string{
	"/root", "/run", "/var/run", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker",
	"/var/lib/kubelet", "/var/lib/lxc",
	"/var/lib/dpkg", "/var/lib/systemd", "/var/spool",
}

// owns tells of host directories that belong to a machine whatever runs on it.
func (m Machine) owns(path string) bool {
	whole := []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc",
		"/sbin", "/sys", "/usr"}
	itself := []string{"/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var", "/var/lib",
		"/var/cache", "/var/log", "/var/run", "/var/tmp"}
	within := func(directory string) bool { return engine.Within(path, directory) }
	return slices.ContainsFunc(whole, within) || slices.Contains(itself, path) ||
		engine.Within(m.StateDir, path) || engine.Within(m.RunDir, path)
}

// mountsBelow lists what is mounted below a directory.
func mountsBelow(directory string) ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var found []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if m, ok := kernel.ParseMount(lines.Text()); ok && m.Point != directory &&
			engine.Within(m.Point, directory) {
			found = append(found, m.Point)
		}
	}
	return found, lines.Err()
}
