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

// RunDir is the default run directory of agents. Engines give a runtime no information about agents.
const RunDir = "/run/godwit"

// directory holds all restore directories, in the run directory. The name is that of release v0.1.0.
const directory = "door"

// idPattern matches ids of engines. It keeps them from being paths.
var idPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// Dir is a restore directory: a container is or was restored from it. It exists until the engine deletes
// the container's processes.
type Dir struct{ path string }

// At returns the restore directory of a container, by the id that its engine gives to its runtime.
func At(runDir, id string) (Dir, error) {
	if !idPattern.MatchString(id) {
		return Dir{}, fmt.Errorf("id of a container %.80q: must have letters, digits, and _ . - only", id)
	}
	return Dir{filepath.Join(runDir, directory, id)}, nil
}

// InRoot returns the id for At of a container whose id is unique only within its runtime's state directory.
// Neither name has two dots in a row, or one at an end.
func InRoot(root, id string) string { return root + ".." + id }

// dirOf returns the restore directory of the container in an engine's call.
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

// CRIU is CRIU's working directory.
func (d Dir) CRIU() string { return filepath.Join(d.path, "criu") }

// Proxy is the socket of the restore proxy of package criu.
func (d Dir) Proxy() string { return filepath.Join(d.path, "gate.sock") }

// PagerLog is the pager's log.
func (d Dir) PagerLog() string { return filepath.Join(d.path, "pager.log") }

// Memory is the pager's report.
func (d Dir) Memory() string { return filepath.Join(d.path, "memory.json") }

// RemotePages is the socket on which the pager takes remote pages.
func (d Dir) RemotePages() string { return filepath.Join(d.path, "late.sock") }

// Network is the network namespace of the container, if it has its own.
func (d Dir) Network() string { return filepath.Join(d.path, "network") }

// Netns returns the network namespace in which the container is restored: the engine's, or its own. It
// needs the runtime to have been called.
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

// Spec returns the engine's specification of the container. It needs the runtime to have been called.
func (d Dir) Spec() (*specs.Spec, error) { return readBundle(d.bundle()) }

// Placeholder is the socket of the restore proxy for the runtime, if the engine makes the network after the
// container has been created.
func (d Dir) Placeholder() string { return filepath.Join(d.path, "forerunner.sock") }

func (d Dir) job() string     { return filepath.Join(d.path, "job.json") }
func (d Dir) runcLog() string { return filepath.Join(d.path, "runc.log") }
func (d Dir) bundle() string  { return filepath.Join(d.path, "bundle") }
func (d Dir) scratch() string { return filepath.Join(d.path, "scratch") }

// mark: the engine has deleted the arrival
func (d Dir) over() string { return filepath.Join(d.path, "over") }

// names runc's state directory of the container
func (d Dir) state() string  { return filepath.Join(d.path, "state") }
func (d Dir) masked() string { return filepath.Join(d.path, "masked") } // made by the restore proxy

// Job tells godwit-runc what to do when it is asked to create the container.
type Job struct {
	Runc   string   `json:"runc"`        // path of the runtime that restores
	Record string   `json:"record"`      // of the restore proxy: exists when the container was allowed to run
	Env    []string `json:"environment"` // of the restore proxy: criu.ProxyEnv, and PATH
	// create returns when there is a PID placeholder, start when the container runs
	Early bool `json:"early"`
}

// Open makes the restore directory, with its directory in memory for the execution state.
func (d Dir) Open() error {
	if err := os.MkdirAll(d.CRIU(), 0o700); err != nil {
		return fmt.Errorf("make the restore directory: %w", err)
	}
	for _, earlier := range []string{d.state(), d.over()} { // of an earlier container with the same id
		if err := os.Remove(earlier); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make the restore directory: %w", err)
		}
	}
	return mounts.Memory(d.Images())
}

// Admit admits the container. From now on it can only be restored.
func (d Dir) Admit(job Job) error {
	return durable.Save(d.job(), job)
}

// load reads the job. Error: fs.ErrNotExist if nothing arrives here.
func (d Dir) load() (job Job, err error) {
	err = durable.Load(d.job(), &job)
	return job, err
}

// Waits reports whether the container can only be restored.
func (d Dir) Waits() bool { return exists(d.job()) }

// Cgroup returns the name of the container's cgroup below the mount point of each hierarchy, once its
// runtime has begun to restore it.
func (d Dir) Cgroup() (string, error) {
	spec, err := readBundle(d.bundle())
	if err != nil {
		return "", err
	}
	return cgroupName(spec.Linux.CgroupsPath), nil
}

// cgroupName returns where a runtime makes a cgroup. With systemd, the runtime gets slice:prefix:name
// (runc, docs/systemd.md).
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

// expandSlice returns the path of a slice in systemd: a-b.slice is within a.slice (systemd.slice(5)).
func expandSlice(slice string) string {
	var path, prefix string
	for part := range strings.SplitSeq(strings.TrimSuffix(slice, ".slice"), "-") {
		if part == "" { // -.slice is the root of all slices
			continue
		}
		path = filepath.Join(path, prefix+part+".slice")
		prefix += part + "-"
	}
	return path
}

// Void makes sure that a restore proxy that has not found its agent yet never does.
func (d Dir) Void() error {
	if err := os.Remove(d.Proxy()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end an arrival: %w", err)
	}
	return nil
}

// Settle makes a resumed container an ordinary one, once its engine knows that it runs: it may be created
// again. If its engine has deleted it before, Settle removes the rest.
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

// Remove removes the restore directory, with all mounts in it. Nothing may run there.
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

// noteState notes runc's state directory of the container. An existing directory belongs to another
// container, and runc will refuse this one.
func (d Dir) noteState(directory string) error {
	if exists(directory) {
		return nil
	}
	return os.WriteFile(d.state(), []byte(directory), 0o600)
}

// forgetState removes the leftovers of a killed runc, which dies with its caller. Its mounts there would
// block a delete. The state of a running container stays, because the id may have been given to another
// one.
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

// initLives reports whether the first process of the container with this state directory of runc is alive
// (libcontainer, BaseState).
func initLives(directory string) bool {
	data, err := os.ReadFile(filepath.Join(directory, "state.json"))
	if err != nil {
		return false // runc has not come that far
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

// Forget removes a directory, and the mounts directly below it.
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
