package door

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
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/files"
)

// RunDir is where agents have their run directory unless they are told otherwise. Engines tell a
// runtime nothing of agents.
const RunDir = "/run/godwit"

// directory of all places, in the run directory.
const directory = "door"

// idPattern is what ids of engines look like. It keeps them from being paths.
var idPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// Place is where a container arrives, or has arrived. It is there until the engine deletes the
// container's processes.
type Place struct{ dir string }

// At is the place of a container by the id that its engine gives to its runtime.
func At(runDir, id string) (Place, error) {
	if !idPattern.MatchString(id) {
		return Place{}, fmt.Errorf("id of a container %.80q: must have letters, digits, and _ . - only", id)
	}
	return Place{filepath.Join(runDir, directory, id)}, nil
}

// InRoot is the id of a place of a container whose id is unique only in the directory in which its
// runtime keeps states. Neither name has two dots in a row, or one at an end.
func InRoot(root, id string) string { return root + ".." + id }

// placeOf is the place of the container that an engine calls for.
func placeOf(c call) (Place, error) {
	if root := (call{after: c.before}).flag("--root"); root != "" {
		place, err := At(RunDir, InRoot(filepath.Base(root), c.id()))
		if err == nil && exists(place.dir) {
			return place, nil
		}
	}
	return At(RunDir, c.id())
}

// Dir is the place's directory.
func (p Place) Dir() string { return p.dir }

// Images is the directory, in memory, for the execution state.
func (p Place) Images() string { return filepath.Join(p.dir, "images") }

// CRIU is its working directory.
func (p Place) CRIU() string { return filepath.Join(p.dir, "criu") }

// Gate is the socket of the gate of package criu.
func (p Place) Gate() string { return filepath.Join(p.dir, "gate.sock") }

// PagerLog is what the pager writes.
func (p Place) PagerLog() string { return filepath.Join(p.dir, "pager.log") }

// Memory is the pager's report.
func (p Place) Memory() string { return filepath.Join(p.dir, "memory.json") }

// RemotePages is the socket on which the pager takes remote pages.
func (p Place) RemotePages() string { return filepath.Join(p.dir, "late.sock") }

// Network is the network namespace of the container, if that is its own.
func (p Place) Network() string { return filepath.Join(p.dir, "network") }

// Netns is the network namespace in which the container is restored: the engine's, or its own. Its
// runtime has been called by then.
func (p Place) Netns() (string, error) {
	spec, err := readBundle(p.bundle())
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

// Forerunner is the socket of the gate for the runtime, if the engine makes the network when the
// container has been created.
func (p Place) Forerunner() string { return filepath.Join(p.dir, "forerunner.sock") }

func (p Place) job() string     { return filepath.Join(p.dir, "job.json") }
func (p Place) runcLog() string { return filepath.Join(p.dir, "runc.log") }
func (p Place) bundle() string  { return filepath.Join(p.dir, "bundle") }
func (p Place) scratch() string { return filepath.Join(p.dir, "scratch") }
func (p Place) over() string    { return filepath.Join(p.dir, "over") }   // its engine has deleted what has arrived
func (p Place) state() string   { return filepath.Join(p.dir, "state") }  // tells where runc keeps what it knows of the container
func (p Place) masked() string  { return filepath.Join(p.dir, "masked") } // made by the gate

// Job is what godwit-runc does when it is asked to create the container.
type Job struct {
	Runc   string   `json:"runc"`        // path of the runtime that restores
	Record string   `json:"record"`      // of the gate: it is there when the container was allowed to run
	Env    []string `json:"environment"` // of the gate: criu.GateEnv, and PATH
	Early  bool     `json:"early"`       // the create is over when there is a forerunner, and the start when the container runs
}

// Open makes the place, with its directory in memory for the execution state.
func (p Place) Open() error {
	if err := os.MkdirAll(p.CRIU(), 0o700); err != nil {
		return fmt.Errorf("make the place of an arrival: %w", err)
	}
	for _, earlier := range []string{p.state(), p.over()} { // of another one that had the same id
		if err := os.Remove(earlier); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make the place of an arrival: %w", err)
		}
	}
	return mounts.Memory(p.Images())
}

// Admit lets the container in. From now on it can only be restored.
func (p Place) Admit(job Job) error {
	return durable.Save(p.job(), job)
}

// load reads the job. Error: fs.ErrNotExist if nothing arrives here.
func (p Place) load() (job Job, err error) {
	err = durable.Load(p.job(), &job)
	return job, err
}

// Waits tells whether the container can only be restored.
func (p Place) Waits() bool { return exists(p.job()) }

// Cgroup is the name of the container's cgroup below the mount point of each hierarchy, when its
// runtime has begun to restore it.
func (p Place) Cgroup() (string, error) {
	spec, err := readBundle(p.bundle())
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

// Void makes sure that no gate that has not found its agent yet ever does.
func (p Place) Void() error {
	if err := os.Remove(p.Gate()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end an arrival: %w", err)
	}
	return nil
}

// Settle makes an ordinary container of one that was resumed and that its engine knows to run: it
// may be created again. If its engine has deleted it before that nothing is left of it.
func (p Place) Settle() error {
	err := errors.Join(mounts.Unmount(p.Images()), p.unmountMemories())
	if err == nil {
		err = os.Remove(p.job())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("tidy up after an arrival: %w", err)
	}
	if exists(p.over()) {
		return p.Remove()
	}
	return nil
}

// Remove removes the place, with all that is mounted in it. Nothing may run there.
func (p Place) Remove() error {
	if err := p.unmountMemories(); err != nil {
		return err
	}
	for _, mounted := range []string{p.Images(), p.scratch(), p.Network(), p.masked()} {
		if err := mounts.Unmount(mounted); err != nil {
			return err
		}
	}
	if err := p.forgetState(); err != nil {
		return err
	}
	return files.RemoveTree(p.dir)
}

// noteState notes where runc will keep what it knows of the container. What is there already is of
// another one, and runc will refuse this one.
func (p Place) noteState(directory string) error {
	if exists(directory) {
		return nil
	}
	return os.WriteFile(p.state(), []byte(directory), 0o600)
}

// forgetState removes what a runc that was killed has left: it ends with who has called it, if that
// is killed. What it had mounted there stands in the way of a delete. What it keeps of a container
// that runs stays: an id may have been given to another one.
func (p Place) forgetState() error {
	directory, err := os.ReadFile(p.state())
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
	return json.Unmarshal(data, &state) == nil && moving.Identity{PID: state.PID, StartTicks: state.StartTicks}.Alive()
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
