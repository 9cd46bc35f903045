package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// alive is what the kernel and the runtime know of a running container.
type alive struct {
	container container.InspectResponse
	group     *kernel.Cgroup
	shim      int         // parent of its first process: it reads its output
	spec      *specs.Spec // with which the runtime made it
	stdio     []string
}

// look finds out what there is of a running container beside what Docker says.
func (e *Engine) look(ctx context.Context, id string) (alive, error) {
	found, err := e.running(ctx, id)
	if err != nil {
		return alive{}, err
	}
	a := alive{container: found}
	if a.group, err = kernel.CgroupOf(found.State.Pid); err != nil {
		return a, err
	}
	process, err := kernel.ReadProcess(found.State.Pid)
	if err != nil {
		return a, err
	}
	a.shim = process.Parent
	// A shim's working directory is the bundle (containerd, runtime/v2/README.md).
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/config.json", a.shim))
	if err != nil {
		return a, fmt.Errorf("find the bundle of container %s: %w", nameOf(found), err)
	}
	a.spec = &specs.Spec{}
	if err := json.Unmarshal(data, a.spec); err != nil {
		return a, fmt.Errorf("bundle of container %s: %w", nameOf(found), err)
	}
	if a.spec.Linux == nil {
		return a, fmt.Errorf("bundle of container %s: it has no linux part", nameOf(found))
	}
	a.stdio, err = stdioOf(filepath.Dir(e.config.Socket), found.ID)
	return a, err
}

// stdioOf asks the runtime's own state what a container's standard descriptors were when it was made.
func stdioOf(runDir, dockerID string) ([]string, error) {
	states, err := filepath.Glob(filepath.Join(runDir, "docker", "runtime-*", "moby", dockerID, "state.json"))
	if err != nil || len(states) == 0 {
		return nil, fmt.Errorf("find what runc knows of container %.12s below %s: %w", dockerID, filepath.Join(runDir, "docker"), errors.Join(err, os.ErrNotExist))
	}
	data, err := os.ReadFile(states[0])
	if err != nil {
		return nil, err
	}
	var state struct {
		Descriptors []string `json:"external_descriptors"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return nil, fmt.Errorf("decode %s: %w", states[0], err)
	}
	if len(state.Descriptors) != 3 {
		return nil, fmt.Errorf("runc knows %d standard descriptors of container %.12s, not 3", len(state.Descriptors), dockerID)
	}
	return state.Descriptors, nil
}

// rootOf is a container's root file system, as Docker mounts it while the container runs.
func rootOf(found container.InspectResponse) (mounts.Overlay, error) {
	if found.GraphDriver == nil || found.GraphDriver.Name != "overlay2" {
		return mounts.Overlay{}, fmt.Errorf("container %s: only Docker's storage driver overlay2 is supported", nameOf(found))
	}
	data := found.GraphDriver.Data
	layers := strings.Split(data["LowerDir"], ":") // the first lies on top
	slices.Reverse(layers)
	root := mounts.Overlay{Layers: layers, Upper: data["UpperDir"], Work: data["WorkDir"], Target: data["MergedDir"]}
	for _, path := range append(layers, root.Upper, root.Work, root.Target) {
		if !filepath.IsAbs(path) {
			return root, fmt.Errorf("container %s: Docker does not say where its files are: %q", nameOf(found), path)
		}
	}
	return root, nil
}

// Examine lists what stands against moving this running container.
func (e *Engine) Examine(ctx context.Context, id string) ([]engine.Problem, error) {
	return moving.LookTwice(ctx, func() ([]engine.Problem, error) { return e.examine(ctx, id) })
}

func (e *Engine) examine(ctx context.Context, id string) ([]engine.Problem, error) {
	a, err := e.look(ctx, id)
	if err != nil {
		return nil, err
	}
	problems := obstacles(a.container.HostConfig)
	if a.container.State.Paused {
		problems = append(problems, engine.Problem{
			What: "container " + nameOf(a.container), Why: "it is paused", Remedy: "docker unpause " + nameOf(a.container),
		})
	}
	root, err := rootOf(a.container)
	if err != nil {
		return nil, err
	}
	place, err := e.place(a.container.ID)
	if err != nil {
		return nil, err
	}
	filling, err := moving.ExamineMemory(place.Memory())
	if err != nil {
		return nil, err
	}
	pids, err := a.group.Procs()
	if err != nil {
		return nil, err
	}
	if a.container.HostConfig.NetworkMode.IsHost() {
		connected, err := hostConnections(pids)
		if err != nil {
			return nil, err
		}
		problems = append(problems, connected...)
	}
	externals, err := criu.ExternalFor(a.spec, root.Target, a.container.State.Pid)
	if err != nil {
		return nil, err
	}
	found, err := moving.Examine(ctx, a.container.State.Pid, criu.Subject{PIDs: pids, Stdio: a.stdio, Mounts: externals.Mounts})
	if err != nil {
		return nil, fmt.Errorf("examine container %s: %w", nameOf(a.container), err)
	}
	return append(append(problems, filling...), found...), nil
}

// Processes are all processes of a container at this moment.
func (e *Engine) Processes(ctx context.Context, id string) ([]int, error) {
	found, err := e.running(ctx, id)
	if err != nil {
		return nil, err
	}
	group, err := kernel.CgroupOf(found.State.Pid)
	if err != nil {
		return nil, err
	}
	return group.Procs()
}

// CPUTime is how much processor time a container has used.
func (e *Engine) CPUTime(ctx context.Context, id string) (time.Duration, error) {
	found, err := e.running(ctx, id)
	if err != nil {
		return 0, err
	}
	group, err := kernel.CgroupOf(found.State.Pid)
	if err != nil {
		return 0, err
	}
	used, err := group.CPUTime()
	return used, moving.Unsupported(err)
}

// Throttle lets a container use so many processors.
func (e *Engine) Throttle(ctx context.Context, id string, cpus float64) error {
	found, err := e.running(ctx, id)
	if cpus == 0 && (errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotRunning) || errors.Is(err, engine.ErrBusy)) {
		return nil
	}
	if err != nil {
		return err
	}
	group, err := kernel.CgroupOf(found.State.Pid)
	if err == nil {
		err = moving.Throttle(group, limitsOf(found.HostConfig.Resources).CPUs, cpus)
	}
	if cpus == 0 && errors.Is(err, kernel.ErrUnsupported) {
		return nil
	}
	return moving.Unsupported(err)
}

// Trees are the directories that make up the container's own state.
func (e *Engine) Trees(ctx context.Context, id string) ([]files.Tree, error) {
	found, err := e.find(ctx, id)
	if err != nil {
		return nil, err
	}
	root, err := rootOf(found)
	if err != nil {
		return nil, err
	}
	private := e.private(e.identity(found.ID, found.Config.Labels))
	if err := makePrivate(private); err != nil {
		return nil, err
	}
	trees := []files.Tree{
		{Kind: files.Writable, Path: root.Upper},
		{Kind: files.Private, Path: private},
	}
	for _, v := range volumesOf(found.Mounts) {
		path, err := e.VolumePath(v)
		if err != nil {
			return nil, err
		}
		trees = append(trees, files.Tree{Kind: files.VolumeOf, Name: v.Key(), Path: path})
	}
	return trees, nil
}

// Depart prepares a running container's move. From now on Docker starts it in no case: of a copy that has left only Godwit knows
// whether it runs.
func (e *Engine) Depart(ctx context.Context, id string, options engine.DepartOptions) (engine.Departure, error) {
	defer e.lock(id)()
	a, err := e.look(ctx, id)
	if err != nil {
		return nil, err
	}
	name := nameOf(a.container)
	place, err := e.place(a.container.ID)
	if err == nil {
		err = moving.RefuseFilling(place.Memory())
	}
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", name, err)
	}
	leaving, err := e.leaving(a, id)
	if err != nil {
		return nil, fmt.Errorf("prepare container %s for its move: %w", name, err)
	}
	first, err := moving.Identify(a.container.State.Pid)
	if err != nil {
		return nil, fmt.Errorf("prepare container %s for its move: %w", name, err)
	}
	var d *moving.Departure
	if err = e.noRestarts(ctx, id, a.container, first); err == nil {
		err = e.copyLog(a.container) // most of it: a round of files follows before the freeze
	}
	if err == nil {
		d, err = moving.Depart(ctx, e.criu, leaving, options)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare container %s for its move: %w", name, err), e.restartsAgain(context.WithoutCancel(ctx), id))
	}
	return &departure{Departure: d, engine: e, id: id, group: a.group, first: first}, nil
}

func (e *Engine) leaving(a alive, id string) (moving.Leaving, error) {
	pid := a.container.State.Pid
	l := moving.Leaving{
		Name: nameOf(a.container), First: pid, Cgroup: a.group, Stdio: a.stdio, Terminal: a.container.Config.Tty,
		WorkDir: e.workDir(id),
		Drain:   func(ctx context.Context) error { return errors.Join(a.drained(ctx), e.copyLog(a.container)) },
	}
	root, err := rootOf(a.container)
	if err != nil {
		return l, err
	}
	l.Root = root.Target
	if l.Externals, err = criu.ExternalFor(a.spec, l.Root, pid); err != nil {
		return l, err
	}
	pids, err := a.group.Procs()
	if err != nil {
		return l, err
	}
	l.Network, err = criu.NetworkFor(withNetwork(a.spec, pid), pids)
	return l, err
}

// withNetwork is a specification that names the network namespace which the runtime has made for it: at the target it is made
// ahead, and the execution state must not have it.
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

// departure is a container that leaves, with its record.
type departure struct {
	*moving.Departure
	engine *Engine
	id     string
	group  *kernel.Cgroup
	first  moving.Identity
}

// Close ends what Depart started.
func (d *departure) Close() error {
	err := d.Departure.Close()
	frozen, frozenErr := d.group.Frozen()
	if goesOn(frozen, frozenErr, d.first.Alive()) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err = errors.Join(err, d.engine.restartsAgain(ctx, d.id))
	}
	return err
}

// goesOn tells whether a container that was to leave is Docker's again: it is not frozen, or it has ended, and its cgroup with
// it. One of which that cannot be found out may be frozen still, and have a copy elsewhere.
func goesOn(frozen bool, unknown error, alive bool) bool { return unknown == nil && !frozen || !alive }

// frozen tells whether a move has frozen a container.
func (e *Engine) frozen(id string, pid int) bool {
	if !exists(e.departurePath(id)) {
		return false
	}
	group, err := kernel.CgroupOf(pid)
	if err != nil {
		return false
	}
	is, err := group.Frozen()
	return err == nil && is
}
