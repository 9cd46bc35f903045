package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// departures examines containers and prepares them for their moves, keeps or resumes the frozen copies, and
// destroys them in the end.
type departures struct {
	adapter Adapter
	records *records
	lookup  *lookup
	starts  *starts
	logs    *logs
	held    *held
	volumes *volumes
	remains *remains
	locks   *checkpoint.Locks
	criu    *checkpoint.CRIU
}

// look finds the state of a running container that its engine does not report.
func (ds *departures) look(ctx context.Context, id string) (alive, error) {
	found, err := ds.lookup.running(ctx, id)
	if err != nil {
		return alive{}, err
	}
	group, err := cgroup.Of(found.Container.PID)
	if err != nil {
		return alive{}, err
	}
	process, err := ds.adapter.Process(found)
	if err != nil {
		return alive{}, err
	}
	a := alive{found: found, group: group, reader: process.Reader}
	if a.spec, err = process.spec(); err != nil {
		return a, fmt.Errorf("bundle of container %s: %w", found.name(), err)
	}
	if a.log, err = ds.adapter.Log(ctx, found); err != nil {
		return a, err
	}
	a.stdio, err = process.stdio()
	return a, err
}

// spec reads the specification that was given to the runtime.
func (p Process) spec() (*specs.Spec, error) {
	data, err := os.ReadFile(filepath.Join(p.Bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, err
	}
	if spec.Linux == nil {
		return nil, errors.New("it has no linux part")
	}
	return spec, nil
}

// stdio reads from the runtime's own state what a container's standard descriptors were when it was made.
func (p Process) stdio() ([]string, error) {
	data, err := os.ReadFile(p.State)
	if err != nil {
		return nil, fmt.Errorf("read the runtime's state of the container: %w", err)
	}
	descriptors, err := externalDescriptors(data)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", p.State, err)
	}
	if len(descriptors) != 3 {
		return nil, fmt.Errorf("the runtime's state has %d standard descriptors in %s, not 3",
			len(descriptors),
			p.State)
	}
	return descriptors, nil
}

// externalDescriptors parses a runtime's state: runc has a list, crun a list as text (libcrun, status.c).
func externalDescriptors(state []byte) ([]string, error) {
	var known struct {
		Descriptors json.RawMessage `json:"external_descriptors"`
	}
	if err := json.Unmarshal(state, &known); err != nil || known.Descriptors == nil {
		return nil, err
	}
	list := []byte(known.Descriptors)
	var text string
	if json.Unmarshal(list, &text) == nil {
		list = []byte(text)
	}
	var descriptors []string
	err := json.Unmarshal(list, &descriptors)
	return descriptors, err
}

// Processes returns all current processes of a container.
func (e *Engine) Processes(ctx context.Context, id string) ([]int, error) {
	group, leaves := e.records.leavingGroup(id)
	if !leaves {
		var err error
		if group, err = e.group(ctx, id); err != nil {
			return nil, err
		}
	}
	return group.Procs()
}

// CPUTime returns the processor time that a container has used.
func (e *Engine) CPUTime(ctx context.Context, id string) (time.Duration, error) {
	group, err := e.group(ctx, id)
	if err != nil {
		return 0, err
	}
	used, err := group.CPUTime()
	return used, checkpoint.Unsupported(err)
}

// Throttle limits a container to this many processors.
func (e *Engine) Throttle(ctx context.Context, id string, cpus float64) error {
	found, err := e.lookup.running(ctx, id)
	if cpus == 0 && (errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotRunning) ||
		errors.Is(err, engine.ErrBusy)) {
		return nil
	}
	if err != nil {
		return err
	}
	group, err := cgroup.Of(found.Container.PID)
	if err == nil {
		err = checkpoint.Throttle(group, found.Container.Definition.Limits.CPUs, cpus)
	}
	if cpus == 0 && errors.Is(err, kernel.ErrUnsupported) {
		return nil
	}
	return checkpoint.Unsupported(err)
}

// treeShm is the name of the tree for /dev/shm if that is a directory of the engine.
const treeShm = "shm"

// Trees returns the directories that make up the container's own state.
func (ds *departures) Trees(ctx context.Context, id string) ([]files.Tree, error) {
	found, err := ds.lookup.find(ctx, id)
	if err != nil {
		return nil, err
	}
	root, err := ds.adapter.Root(found)
	if err != nil {
		return nil, err
	}
	private := ds.records.private(ds.lookup.identity(found))
	if err := makePrivate(private); err != nil {
		return nil, err
	}
	trees := []files.Tree{
		{Kind: files.Writable, Path: root.Upper},
		{Kind: files.Private, Path: private},
	}
	if shm := ds.adapter.Shm(found); shm != "" {
		trees = append(trees, files.Tree{Kind: files.Memory, Name: treeShm, Path: shm})
	}
	for _, v := range found.Container.Definition.Volumes {
		path, err := ds.volumes.VolumePath(v)
		if err != nil {
			return nil, err
		}
		trees = append(trees, files.Tree{Kind: files.VolumeOf, Name: v.Key(), Path: path})
	}
	if found.Container.PID == 0 {
		return trees, nil
	}
	a, err := ds.look(ctx, id)
	if err != nil {
		return nil, err
	}
	inMemory, err := ds.held.memoryTrees(id, a)
	return append(trees, inMemory...), err
}

// PrepareDump prepares a running container's move. From now on its engine does not start it in any case,
// because only Godwit knows whether a copy that has left runs.
func (ds *departures) PrepareDump(
	ctx context.Context, id string, options engine.DumpOptions,
) (engine.Departure, error) {
	unlock, err := ds.locks.LockBefore(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	a, err := ds.look(ctx, id)
	if err != nil {
		return nil, err
	}
	name := a.found.name()
	dir, err := ds.lookup.restoreDir(a.found.ID)
	if err == nil {
		err = checkpoint.RefuseFilling(dir.Memory())
	}
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", name, err)
	}
	leaving, err := ds.leaving(a, id)
	if err != nil {
		return nil, fmt.Errorf("prepare container %s for its move: %w", name, err)
	}
	first, err := checkpoint.Identify(a.found.Container.PID)
	if err != nil {
		return nil, fmt.Errorf("prepare container %s for its move: %w", name, err)
	}
	var d *checkpoint.Departure
	if err = ds.starts.noRestarts(ctx, id, a, first, options.Leave); err == nil {
		err = ds.logs.copyLog(id, a) // most of the log: a round of files follows before the freeze
	}
	if err == nil {
		d, err = checkpoint.PrepareDump(ctx, ds.criu, leaving, options)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare container %s for its move: %w", name, err),
			ds.starts.restartsAgain(context.WithoutCancel(ctx), id))
	}
	return &departure{Departure: d, departures: ds, id: id, group: a.group, first: first}, nil
}

func (ds *departures) leaving(a alive, id string) (checkpoint.Leaving, error) {
	pid := a.found.Container.PID
	l := checkpoint.Leaving{
		Name: a.found.name(), First: pid, Cgroup: a.group, Stdio: a.stdio,
		Terminal: a.found.Container.Definition.TTY,
		WorkDir:  ds.records.workDir(id),
		Drain: func(ctx context.Context) error {
			return errors.Join(a.drained(ctx), ds.logs.copyLog(id, a))
		},
	}
	root, err := ds.adapter.Root(a.found)
	if err != nil {
		return l, err
	}
	l.Root = root.Target
	if l.Externals, err = a.externals(l.Root); err != nil {
		return l, err
	}
	pids, err := a.group.Procs()
	if err != nil {
		return l, err
	}
	l.Network, err = criu.NetworkFor(withNetwork(a.spec, pid), pids)
	return l, err
}

// withNetwork returns a specification that names the network namespace that the runtime has made for it. At
// the target the namespace is made beforehand, so the execution state must not contain it.
func withNetwork(spec *specs.Spec, pid int) *specs.Spec {
	named, linux := *spec, *spec.Linux
	named.Linux = &linux
	linux.Namespaces = append([]specs.LinuxNamespace{}, linux.Namespaces...)
	for i, n := range linux.Namespaces {
		if n.Type == specs.NetworkNamespace && n.Path == "" {
			linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/net", pid)
		}
	}
	return &named
}

// departure is a leaving container, with its record.
type departure struct {
	*checkpoint.Departure
	departures *departures
	id         string
	group      *cgroup.Cgroup
	first      checkpoint.Identity
	froze      bool // or has tried to freeze it
}

// Freeze stops the container's processes.
func (d *departure) Freeze(ctx context.Context) (time.Time, error) {
	d.froze = true
	return d.Departure.Freeze(ctx)
}

// Close undoes PrepareDump.
func (d *departure) Close() error {
	defer d.departures.held.LetGo()
	return errors.Join(d.Departure.Close(), d.departures.closed(d.id, d.group, d.first, d.froze))
}

// closed gives a container back to its engine after a departure, unless the departure has frozen the
// container and nobody has resumed it since.
func (ds *departures) closed(id string, group *cgroup.Cgroup, first checkpoint.Identity, froze bool) error {
	defer ds.locks.Lock(id)()
	frozen, unknown := group.ToldToFreeze()
	if froze && !ds.records.resumed(id) && !goesOn(frozen, unknown, first.Alive()) {
		return nil
	}
	ctx, cancel := ds.lookup.asking(context.Background())
	defer cancel()
	return ds.starts.restartsAgain(ctx, id)
}

// goesOn reports whether a container that was to leave belongs to its engine again: it is not frozen, or it
// and its cgroup have ended. If the state is unknown, the container may still be frozen and have a copy
// elsewhere.
func goesOn(frozen bool, unknown error, alive bool) bool { return unknown == nil && !frozen || !alive }
