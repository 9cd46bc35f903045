package oci

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

var idPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// records are the files that this engine keeps of moves of its containers.
type records struct {
	engine     string // its name
	state, run string // the agent's directories
}

// departureRecord exists from PrepareDump until the container is resumed or destroyed.
type departureRecord struct {
	Started time.Time           `json:"started"`
	First   checkpoint.Identity `json:"first"`
	Freezer string              `json:"freezer"` // directory of the cgroup by which they are frozen
	// what the engine is to do when the container ends; while it leaves: nothing
	Restart json.RawMessage `json:"restart"`
	Boot    string          `json:"boot"` // of the machine on which the container runs
	Leave   engine.Leave    `json:"leave,omitzero"`
	Name    string          `json:"name,omitempty"` // the engine's name for it, before the copy was marked
	// Resumed: the container continues here, and its engine may not know that yet.
	Resumed bool `json:"resumed,omitempty"`
}

// arrivalRecord exists from the beginning of an arrival until the container has been resumed and its engine
// knows it.
type arrivalRecord struct {
	Definition engine.Definition `json:"definition"`
	Restart    json.RawMessage   `json:"restart"`          // once the container runs
	Volumes    []string          `json:"volumes"`          // made by the arrival
	EngineID   string            `json:"own_id,omitempty"` // once the engine has made the container
	Boot       string            `json:"boot"`             // of the machine, during the arrival
	Began      time.Time         `json:"began"`
	Unmade     bool              `json:"unmade,omitempty"` // the engine reported that it created no container
}

// save also makes the record's directory.
func save(path string, value any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.Save(path, value)
}

// arriving finds a container that is arriving and has not been resumed. It does not query the engine, which
// may be busy with the container.
func (r *records) arriving(id string) (engine.Container, bool, error) {
	was, is, err := r.arrivalOf(id)
	return engine.Container{Definition: was.Definition, State: engine.Arriving}, is, err
}

func (r *records) arrivalOf(id string) (was arrivalRecord, is bool, err error) {
	if !idPattern.MatchString(id) {
		return was, false, nil
	}
	err = durable.Load(r.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) || err == nil && durable.Exists(r.recordPath(id)) {
		return was, false, nil
	}
	return was, err == nil, err
}

// records returns the directory of this engine's records of a container's move.
func (r *records) dir(id string) string {
	return filepath.Join(r.state, "engines", r.engine, id)
}

func (r *records) arrivalPath(id string) string { return filepath.Join(r.dir(id), "arrival.json") }

func (r *records) departurePath(id string) string {
	return filepath.Join(r.dir(id), "departure.json")
}

func (r *records) recordPath(id string) string { return filepath.Join(r.dir(id), "resumed") }

// orphanPath returns the path of the record that says why the engine's start failed after the container was
// resumed.
func (r *records) orphanPath(id string) string { return filepath.Join(r.dir(id), "start-failed") }

func (r *records) private(id string) string { return filepath.Join(r.dir(id), "private") }

// workDir returns the directory for CRIU's logs of a leaving container.
func (r *records) workDir(id string) string {
	return filepath.Join(r.run, "engines", r.engine, id)
}

func (r *records) camePath(id string) string {
	return filepath.Join(r.state, "engines", r.engine+"-came", id)
}

// passedPath is the file that lists the system calls that the filters of an arrived container let through.
// The file stays as long as the container: the processes keep their filters, while the specification that
// this node's engine made has another filter.
func (r *records) passedPath(id string) string {
	return filepath.Join(r.state, "engines", r.engine+"-calls", id)
}

// remembered returns the path of the record that says which engine ID an arrived container has, for as long
// as it is here.
func (r *records) remembered(id string) string {
	return filepath.Join(r.state, "engines", r.engine+"-ids", id)
}

// sparedPath is the path of checkpoint.Protect's record. The file is in memory, because it is written
// during the freeze, and the processes do not survive the machine anyway.
func (r *records) sparedPath(id string) string { return filepath.Join(r.workDir(id), "spared.json") }

// moves reports whether a container is moving, or has not been handed over to its engine completely.
func (r *records) moves(id string) bool {
	return durable.Exists(r.arrivalPath(id)) || durable.Exists(r.departurePath(id)) ||
		durable.Exists(r.camePath(id))
}

// forget removes the records of a container's move. It removes that of an arrival first, durably: without
// the restore proxy's record beside it, it would say that the container never ran.
func (r *records) forget(id string) error {
	if err := durable.Remove(r.arrivalPath(id)); err != nil {
		return err
	}
	if err := kernel.SyncDir(r.dir(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(files.RemoveTree(r.dir(id)), files.RemoveTree(r.workDir(id)))
}

func (r *records) remember(id, engineID string) error { return save(r.remembered(id), engineID) }

// unremember forgets a container that arrived here and no longer exists.
func (r *records) unremember(id string) error {
	return errors.Join(durable.Remove(r.passedPath(id)), durable.Remove(r.remembered(id)))
}

// orphan reports whether a container is an orphan: it runs, but its engine's start has failed after it was
// resumed. The engine does not know that it runs, and would start a second one.
func (r *records) orphan(id string, dir shim.Dir) (bool, error) {
	if !durable.Exists(r.orphanPath(id)) {
		return false, nil
	}
	return occupied(dir)
}

// Leaves returns the notes of all leaving containers.
func (r *records) Leaves() (all []engine.Leave, err error) {
	departures, err := durable.LoadEach[departureRecord](r.dir(""), filepath.Base(r.departurePath("")))
	for _, one := range departures {
		all = append(all, one.Leave)
	}
	return all, err
}

// describeLeaving adds why a container leaves, and its original name if its name is a mark. A record that
// cannot be read says only that it leaves.
func (r *records) describeLeaving(ctr *engine.Container) {
	var was departureRecord
	if err := durable.Load(r.departurePath(ctr.Definition.ID), &was); errors.Is(err, os.ErrNotExist) {
		return
	}
	ctr.Leaving = &was.Leave
	if was.Name != "" && ctr.Definition.Name == was.moved().MarkedName() {
		ctr.Definition.Name = was.Name
	}
}

// resumed reports whether a container that was to leave continues here. If something freezes it later, such
// as "docker pause", that has nothing to do with the departure.
func (r *records) resumed(id string) bool {
	var was departureRecord
	return durable.Load(r.departurePath(id), &was) == nil && was.Resumed
}

// frozen reports whether a move has frozen a container.
func (r *records) frozen(id string, pid int) bool {
	if !durable.Exists(r.departurePath(id)) || r.resumed(id) {
		return false
	}
	group, err := cgroup.Of(pid)
	if err != nil {
		return false
	}
	is, err := group.ToldToFreeze()
	return err == nil && is
}

// leavingGroup returns the cgroup of a leaving container. It does not query the engine, which may hang, be
// away, or be removing the container.
func (r *records) leavingGroup(id string) (*cgroup.Cgroup, bool) {
	var was departureRecord
	if !idPattern.MatchString(id) || durable.Load(r.departurePath(id), &was) != nil || !was.First.Alive() {
		return nil, false
	}
	group, err := cgroup.Of(was.First.PID)
	return group, err == nil
}

// occupied reports whether processes run in the cgroup of the container restored from a directory.
func occupied(dir shim.Dir) (bool, error) {
	group, err := groupIn(dir)
	var pids []int
	if err == nil {
		pids, err = group.Procs()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(pids) > 0, err
}

// groupIn returns the cgroup of the container restored from a directory.
func groupIn(dir shim.Dir) (*cgroup.Cgroup, error) {
	name, err := dir.Cgroup()
	if err != nil {
		return nil, err
	}
	return cgroup.Open(name)
}

// moved returns what a copy is marked with. The name was recorded before the copy could be marked, so the
// next agent can remove the mark if this one is killed meanwhile.
func (d departureRecord) moved() Moved { return Moved{Name: d.Name, Node: d.Leave.Target} }

// resume resumes the processes, or the group that they have left: see cgroup.Cgroup.Kill.
func (d departureRecord) resume(ctx context.Context) error {
	if !d.First.Alive() {
		return d.resumeEmpty()
	}
	group, err := cgroup.Of(d.First.PID)
	if err != nil {
		return err
	}
	return checkpoint.Resume(ctx, group)
}

// resumeEmpty thaws a group whose processes somebody else has ended while they were frozen.
func (d departureRecord) resumeEmpty() error {
	if d.Freezer == "" { // record of an older agent
		return nil
	}
	group, err := cgroup.At(d.Freezer)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return group.Thaw()
}
