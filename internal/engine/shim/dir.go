package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
)

// RunDir is where agents have their run directory unless they are told otherwise. Engines tell a
// runtime nothing of agents.
const RunDir = "/run/godwit"

// directory of all restore directories, in the run directory. The name is that of release v0.1.0.
const directory = "door"

// idPattern is what ids of engines look like. It keeps them from being paths.
var idPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// Dir is a restore directory: a container is restored from it, or was. It exists until the engine
// deletes the container's processes.
type Dir struct{ path string }

// At is the restore directory of a container, by the id that its engine gives to its runtime.
func At(runDir, id string) (Dir, error) {
	if !idPattern.MatchString(id) {
		return Dir{}, fmt.Errorf("id of a container %.80q: must have letters, digits, and _ . - only", id)
	}
	return Dir{filepath.Join(runDir, directory, id)}, nil
}

// InRoot is the id for At of a container whose id is unique only in the directory in which its
// runtime keeps states. Neither name has two dots in a row, or one at an end.
func InRoot(root, id string) string { return root + ".." + id }

// dirOf is the restore directory of the container that an engine calls for.
func dirOf(c call) (Dir, error) {
	if root := (call{after: c.before}).flag("--root"); root != "" {
		dir, err := At(RunDir, InRoot(filepath.Base(root), c.id()))
		if err == nil && exists(dir.path) {
			return dir, nil
		}
	}
	return At(RunDir, c.id())
}

// Path of the restore directory.
func (d Dir) Path() string { return d.path }

// Images is the directory, in memory, for the execution state.
func (d Dir) Images() string { return filepath.Join(d.path, "images") }

// CRIU is its working directory.
func (d Dir) CRIU() string { return filepath.Join(d.path, "criu") }

// Proxy is the socket of the restore proxy of package criu.
func (d Dir) Proxy() string { return filepath.Join(d.path, "gate.sock") }

// PagerLog is what the pager writes.
func (d Dir) PagerLog() string { return filepath.Join(d.path, "pager.log") }

// Memory is the pager's report.
func (d Dir) Memory() string { return filepath.Join(d.path, "memory.json") }

// RemotePages is the socket on which the pager takes remote pages.
func (d Dir) RemotePages() string { return filepath.Join(d.path, "late.sock") }

// Network is the network namespace of the container, if that is its own.
func (d Dir) Network() string { return filepath.Join(d.path, "network") }

// Netns is the network namespace in which the container is restored: the engine's, or its own. Its
// runtime has been called by then.
func (d Dir) Netns() (string, error) {
	spec, err := readBundle(d.bundle())
	if err != nil {
		return "", err
	}
	for _, n := range spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace && n.Path != "" {
			return n.Path, nil
		}
	}
	return "", errors.New("the container has no network namespace of its own")
}

// Spec is the specification that the engine has made of the container. Its runtime has been called by then.
func (d Dir) Spec() (*specs.Spec, error) { return readBundle(d.bundle()) }

// Placeholder is the socket of the restore proxy for the runtime, if the engine makes the network
// when the container has been created.
func (d Dir) Placeholder() string { return filepath.Join(d.path, "forerunner.sock") }

func (d Dir) job() string     { return filepath.Join(d.path, "job.json") }
func (d Dir) runcLog() string { return filepath.Join(d.path, "runc.log") }
func (d Dir) bundle() string  { return filepath.Join(d.path, "bundle") }
func (d Dir) scratch() string { return filepath.Join(d.path, "scratch") }

// its engine has deleted what has arrived
func (d Dir) over() string { return filepath.Join(d.path, "over") }

// tells where runc keeps what it knows of the container
func (d Dir) state() string  { return filepath.Join(d.path, "state") }
func (d Dir) masked() string { return filepath.Join(d.path, "masked") } // made by the restore proxy

// Job is what godwit-runc does when it is asked to create the container.
type Job struct {
	Runc   string   `json:"runc"`        // path of the runtime that restores
	Record string   `json:"record"`      // of the restore proxy: exists when the container was allowed to run
	Env    []string `json:"environment"` // of the restore proxy: criu.ProxyEnv, and PATH
	// create ends when there is a PID placeholder, start when the container runs
	Early bool `json:"early"`
}

// Open makes the restore directory, with its directory in memory for the execution state.
func (d Dir) Open() error {
	if err := os.MkdirAll(d.CRIU(), 0o700); err != nil {
		return fmt.Errorf("make the restore directory: %w", err)
	}
	for _, earlier := range []string{d.state(), d.over()} { // of another one that had the same id
		if err := os.Remove(earlier); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make the restore directory: %w", err)
		}
	}
	return mounts.Memory(d.Images())
}

// Admit lets the container in. From now on it can only be restored.
func (d Dir) Admit(job Job) error {
	return durable.Save(d.job(), job)
}

// load reads the job. Error: fs.ErrNotExist if nothing arrives here.
func (d Dir) load() (job Job, err error) {
	err = durable.Load(d.job(), &job)
	return job, err
}

// Waits tells whether the container can only be restored.
func (d Dir) Waits() bool { return exists(d.job()) }

// Cgroup is the name of the container's cgroup below the mount point of each hierarchy, when its
// runtime has begun to restore it.
func (d Dir) Cgroup() (string, error) {
	spec, err := readBundle(d.bundle())
	if err != nil {
		return "", err
	}
	return cgroupName(spec.Linux.CgroupsPath), nil
}

// cgroupName is where a runtime makes a cgroup. Where systemd makes cgroups it is told
// slice:prefix:name (runc, docs/systemd.md).
func cgroupName(path string) string {
	parts := strings.Split(path, ":")
	if len(parts) != 3 {
		return filepath.Join("/", path)
	}
	slice, scope := parts[0], parts[2]
	if slice == "" {
		slice = "system.slice"
	}
	if parts[1] != "" {
		scope = parts[1] + "-" + scope
	}
	return filepath.Join("/", expandSlice(slice), scope+".scope")
}

// expandSlice is where systemd has a slice: a-b.slice is within a.slice (systemd.slice(5)).
func expandSlice(slice string) string {
	var path, prefix string
	for part := range strings.SplitSeq(strings.TrimSuffix(slice, ".slice"), "-") {
		if part == "" { // -.slice is the root of all
			continue
		}
		path = filepath.Join(path, prefix+part+".slice")
		prefix += part + "-"
	}
	return path
}

// Void makes sure that no restore proxy that has not found its agent yet ever does.
func (d Dir) Void() error {
	if err := os.Remove(d.Proxy()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end an arrival: %w", err)
	}
	return nil
}

// Settle makes an ordinary container of one that was resumed and that its engine knows to run: it
// may be created again. If its engine has deleted it before that nothing is left of it.
func (d Dir) Settle() error {
	err := errors.Join(mounts.Unmount(d.Images()), d.unmountMemories())
	if err == nil {
		err = os.Remove(d.job())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clean up after an arrival: %w", err)
	}
	if exists(d.over()) {
		return d.Remove()
	}
	return nil
}

// Remove removes the restore directory, with all that is mounted in it. Nothing may run there.
func (d Dir) Remove() error {
	if err := d.unmountMemories(); err != nil {
		return err
	}
	for _, mounted := range []string{d.Images(), d.scratch(), d.Network(), d.masked()} {
		if err := mounts.Unmount(mounted); err != nil {
			return err
		}
	}
	if err := d.forgetState(); err != nil {
		return err
	}
	return files.RemoveTree(d.path)
}

// noteState notes where runc will keep what it knows of the container. What is there already is of
// another one, and runc will refuse this one.
func (d Dir) noteState(directory string) error {
	if exists(directory) {
		return nil
	}
	return os.WriteFile(d.state(), []byte(directory), 0o600)
}

// forgetState removes what a runc that was killed has left: it ends with who has called it, if that
// is killed. What it had mounted there stands in the way of a delete. What it keeps of a container
// that runs stays: an id may have been given to another one.
func (d Dir) forgetState() error {
	directory, err := os.ReadFile(d.state())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !initLives(string(directory)) {
		err = Forget(string(directory))
	}
	if err != nil {
		return fmt.Errorf("remove what runc has left: %w", err)
	}
	return nil
}

// initLives tells whether the first process of a container lives of which runc keeps its state in a
// directory (libcontainer, BaseState).
func initLives(directory string) bool {
	data, err := os.ReadFile(filepath.Join(directory, "state.json"))
	if err != nil {
		return false // it has not come that far
	}
	var state struct {
		PID        int    `json:"init_process_pid"`
		StartTicks uint64 `json:"init_process_start"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return false
	}
	return checkpoint.Identity{PID: state.PID, StartTicks: state.StartTicks}.Alive()
}

// Forget removes a directory, and takes away what is mounted directly below it.
func Forget(directory string) error {
	if err := mounts.UnmountBelow(directory); err != nil {
		return err
	}
	return files.RemoveTree(directory)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
