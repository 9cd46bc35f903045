package embedded

import (
	"path/filepath"
	"regexp"
	"strconv"
)

// idPattern matches container IDs. Everything that becomes a path is checked against a pattern first.
var (
	idPattern   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	namePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
)

// paths has the locations of the engine's files on this node.
type paths struct {
	state string // survives a reboot
	run   string // does not survive a reboot
	group string // parent of the containers' cgroups
}

func (p paths) containers() string         { return filepath.Join(p.state, "containers") }
func (p paths) volumes() string            { return filepath.Join(p.state, "volumes") }
func (p paths) volume(n string) string     { return filepath.Join(p.volumes(), n) }
func (p paths) runcRoot() string           { return filepath.Join(p.run, "runc") }
func (p paths) tools() string              { return filepath.Join(p.run, "gate-bin") }
func (p paths) of(id string) container     { return container{id: id, paths: p} }
func (p paths) runContainers() string      { return filepath.Join(p.run, "containers") }
func (p paths) runcState(id string) string { return filepath.Join(p.runcRoot(), id) }

// container has the locations of one container's files.
type container struct {
	id    string
	paths paths
}

// Files that survive a reboot.
func (c container) dir() string        { return filepath.Join(c.paths.containers(), c.id) }
func (c container) definition() string { return filepath.Join(c.dir(), "definition.json") }
func (c container) record() string     { return filepath.Join(c.dir(), "record.json") }
func (c container) spec() string       { return filepath.Join(c.dir(), "config.json") }
func (c container) upper() string      { return filepath.Join(c.dir(), "upper") }
func (c container) work() string       { return filepath.Join(c.dir(), "work") }
func (c container) private() string    { return filepath.Join(c.dir(), "private") }
func (c container) log() string        { return filepath.Join(c.private(), "log") }
func (c container) arrival() string    { return filepath.Join(c.dir(), "arrival.json") }
func (c container) lost() string       { return filepath.Join(c.dir(), "memory.json") }
func (c container) departure() string  { return filepath.Join(c.dir(), "departure.json") }
func (c container) halted() string     { return filepath.Join(c.dir(), "halted.json") }
func (c container) restarts() string   { return filepath.Join(c.dir(), "restarts.json") }
func (c container) resumed() string    { return filepath.Join(c.dir(), "resumed") }

// Files that do not survive a reboot.
func (c container) runDir() string       { return filepath.Join(c.paths.runContainers(), c.id) }
func (c container) rootfs() string       { return filepath.Join(c.runDir(), "rootfs") }
func (c container) shm() string          { return filepath.Join(c.runDir(), "shm") }
func (c container) tmpfs(i int) string   { return filepath.Join(c.runDir(), "tmpfs-"+strconv.Itoa(i)) }
func (c container) images() string       { return filepath.Join(c.runDir(), "images") }
func (c container) criuWork() string     { return filepath.Join(c.runDir(), "criu") }
func (c container) runtime() string      { return filepath.Join(c.runDir(), "runtime.json") }
func (c container) spared() string       { return filepath.Join(c.runDir(), "spared.json") }
func (c container) monitorLog() string   { return filepath.Join(c.runDir(), "monitor.log") }
func (c container) job() string          { return filepath.Join(c.runDir(), "job.json") }
func (c container) proxySocket() string  { return filepath.Join(c.runDir(), "gate.sock") }
func (c container) control() string      { return filepath.Join(c.runDir(), "ctl.sock") }
func (c container) console() string      { return filepath.Join(c.runDir(), "tty.sock") }
func (c container) pidFile() string      { return filepath.Join(c.runDir(), "pid") }
func (c container) pagerLog() string     { return filepath.Join(c.runDir(), "pager.log") }
func (c container) memory() string       { return filepath.Join(c.runDir(), "memory.json") }
func (c container) remoteSocket() string { return filepath.Join(c.runDir(), "late.sock") }

// of v0.1.0: see leaves.go
func (c container) oldDeparture() string { return filepath.Join(c.runDir(), "departure.json") }
func (c container) runcLog() string      { return filepath.Join(c.runDir(), "runc.log") }

// cgroup is the container's cgroup, below the mount point of each hierarchy.
func (c container) cgroup() string { return filepath.Join(c.paths.group, c.id) }
