package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// Images locates the layers of images.
type Images interface {
	// LayerPath returns the directory with the content of a layer, by its DiffID.
	LayerPath(diffID string) (string, error)
}

// Config says where the engine keeps its files and finds its tools.
type Config struct {
	StateDir   string
	RunDir     string
	Runc       string    // path; "" to look for it
	Criu       criu.Tool // zero to look for it when it is needed
	Images     Images
	Executable string // this program, which becomes monitors and restore proxies; "" for the running one
	ResolvConf string // "" for /etc/resolv.conf
	Cgroup     string // parent of the containers' cgroups; "" for /godwit
	// names the content of StateDir; if the name differs, the content may be older than what this node last
	// had
	State string
}

// Engine runs containers with runc. It implements engine.Engine.
type Engine struct {
	config Config
	paths  paths
	runc   runc
	criu   *checkpoint.CRIU

	locks    checkpoint.Locks
	arrivals checkpoint.Arrivals
	starting sync.Map // by ID: containers that this process is just starting

	room     room
	notesMu  sync.Mutex
	policies map[string]bool // by ID: whether a container has a restart policy
	pending  map[string]bool // by ID: a note of it is still to be made durable; see KeepNotes
	stopped  map[string]bool // by ID: somebody has stopped it, which could not be recorded
}

var _ engine.Engine = (*Engine)(nil)

// New opens the engine. It starts nothing; running containers continue.
func New(config Config) (*Engine, error) {
	if config.Images == nil {
		return nil, errors.New("embedded engine: no source of images")
	}
	if config.Runc == "" {
		path, err := checkpoint.FindRunc()
		if err != nil {
			return nil, err
		}
		config.Runc = path
	}
	if config.Executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		config.Executable = path
	}
	if config.ResolvConf == "" {
		config.ResolvConf = "/etc/resolv.conf"
	}
	if config.Cgroup == "" {
		config.Cgroup = "/godwit"
	}
	p := paths{state: config.StateDir, run: config.RunDir, group: config.Cgroup}
	e := &Engine{
		config: config, paths: p,
		criu: checkpoint.NewCRIU(config.Criu), runc: runc{path: config.Runc, root: p.runcRoot()},
		room: room{path: filepath.Join(p.containers(), roomName)}, pending: map[string]bool{},
		stopped: map[string]bool{},
	}
	return e, e.prepare()
}

// prepare makes the engine's directories and finishes removals that a crash interrupted.
func (e *Engine) prepare() error {
	for _, dir := range []string{e.paths.containers(), e.paths.volumes(), e.paths.runContainers(),
		e.paths.runcRoot()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directory of the embedded engine: %w", err)
		}
	}
	entries, err := os.ReadDir(e.paths.containers())
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), removingPrefix) {
			if err := os.RemoveAll(filepath.Join(e.paths.containers(), entry.Name())); err != nil {
				return fmt.Errorf("finish the removal of a container: %w", err)
			}
		}
		if idPattern.MatchString(entry.Name()) && e.keepNotesOf(entry.Name()) != nil {
			e.setPending(entry.Name()) // an agent must start on a full disk: KeepNotes retries, and reports
		}
	}
	_ = e.room.keep() // KeepNotes reports errors
	return nil
}

// Name of the engine.
func (e *Engine) Name() string { return Name }

// lock keeps other changes of a container away until the returned function is called.
func (e *Engine) lock(id string) (unlock func()) { return e.locks.Lock(id) }

// find checks an ID and that the container exists.
func (e *Engine) find(id string) (container, error) {
	if !idPattern.MatchString(id) {
		return container{}, fmt.Errorf("container %.80q: %w", id, engine.ErrNotFound)
	}
	files := e.paths.of(id)
	if !durable.Exists(files.definition()) {
		return files, fmt.Errorf("container %.12s: %w", id, engine.ErrNotFound)
	}
	return files, nil
}

// List lists all containers, in order of name. A container whose record cannot be read does not affect the
// others.
func (e *Engine) List(ctx context.Context) ([]engine.Container, error) {
	entries, err := os.ReadDir(e.paths.containers())
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var all []engine.Container
	for _, entry := range entries {
		if !idPattern.MatchString(entry.Name()) {
			continue
		}
		ctr, err := e.inspect(entry.Name())
		if errors.Is(err, engine.ErrNotFound) { // removed meanwhile
			continue
		}
		if err != nil {
			ctr = damaged(entry.Name(), ctr)
		}
		all = append(all, ctr)
	}
	slices.SortFunc(all,
		func(a, b engine.Container) int { return strings.Compare(a.Definition.Name, b.Definition.Name) })
	return all, ctx.Err()
}

// damaged returns a container of which only a part could be read, or nothing.
func damaged(id string, part engine.Container) engine.Container {
	part.Definition.ID, part.State = id, engine.Damaged
	if part.Definition.Name == "" {
		part.Definition.Name = id[:12]
	}
	return part
}

// Inspect finds a container by name, id, or unique prefix of an id.
func (e *Engine) Inspect(ctx context.Context, ref string) (engine.Container, error) {
	ctr, err := e.lookup(ctx, ref)
	if err != nil || ctr.PID == 0 || ctr.Definition.Passed != nil {
		return ctr, err
	}
	if spec, err := loadSpec(e.paths.of(ctr.Definition.ID)); err == nil && spec.Linux != nil {
		ctr.Definition.Passed = checkpoint.PassedCalls(ctr.PID, spec.Linux.Seccomp)
	}
	return ctr, nil
}

func (e *Engine) lookup(ctx context.Context, ref string) (engine.Container, error) {
	if idPattern.MatchString(ref) {
		return e.inspect(ref)
	}
	all, err := e.List(ctx)
	if err != nil {
		return engine.Container{}, err
	}
	var found []engine.Container
	for _, ctr := range all {
		if ctr.Definition.Name == ref {
			return e.intact(ctr)
		}
		if ref != "" && strings.HasPrefix(ctr.Definition.ID, ref) {
			found = append(found, ctr)
		}
	}
	switch len(found) {
	case 0:
		return engine.Container{}, fmt.Errorf("container %.80q: %w", ref, engine.ErrNotFound)
	case 1:
		return e.intact(found[0])
	}
	return engine.Container{}, fmt.Errorf("container %.80q: %w: %d ids begin so; give more of it",
		ref, engine.ErrNotFound, len(found))
}

// intact returns an error that says what is wrong if a container is damaged.
func (e *Engine) intact(ctr engine.Container) (engine.Container, error) {
	if ctr.State == engine.Damaged {
		return e.inspect(ctr.Definition.ID)
	}
	return ctr, nil
}

// inspect combines what the disk and the kernel know about a container.
func (e *Engine) inspect(id string) (engine.Container, error) {
	files, err := e.find(id)
	if err != nil {
		return engine.Container{}, err
	}
	var ctr engine.Container
	var was record
	err = durable.Load(files.definition(), &ctr.Definition)
	if err == nil {
		err = durable.Load(files.record(), &was)
	}
	if errors.Is(err, fs.ErrNotExist) && !durable.Exists(files.definition()) {
		return ctr, fmt.Errorf("container %.12s: %w", id, engine.ErrNotFound)
	}
	if err != nil {
		return ctr, fmt.Errorf("inspect container %.12s: %w", id, err)
	}
	ctr.State, ctr.Started, ctr.Finished, ctr.ExitCode = was.State, was.Started, was.Finished, was.ExitCode
	if was.State == engine.Running || durable.Exists(files.arrival()) {
		err = e.addProcesses(files, &ctr)
	}
	if ctr.State == engine.Exited && durable.Exists(files.halted()) {
		ctr.State = engine.Frozen
	}
	var failed error
	ctr.Leaving, failed = leavingOf(files)
	return ctr, errors.Join(err, failed)
}

// leavingOf returns why a container leaves; nil: it does not.
func leavingOf(files container) (*engine.Leave, error) {
	departed, err := loadDeparture(files)
	if err == nil {
		return &departed.Leave, nil
	}
	var halted haltRecord
	if errors.Is(err, fs.ErrNotExist) {
		err = durable.Load(files.halted(), &halted)
	}
	switch {
	case err == nil:
		return &halted.Leave, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	}
	return nil, err
}

// Leaves returns the notes of all leaving containers.
func (e *Engine) Leaves() (all []engine.Leave, failed error) {
	containers, err := e.List(context.Background())
	if err != nil {
		return nil, err
	}
	for _, ctr := range containers {
		leave, err := leavingOf(e.paths.of(ctr.Definition.ID))
		failed = errors.Join(failed, err)
		if leave != nil {
			all = append(all, *leave)
		}
	}
	return all, failed
}

// addProcesses adds the state of a container that was started or is arriving.
func (e *Engine) addProcesses(files container, ctr *engine.Container) error {
	now, lives, err := living(files)
	if err != nil {
		return err
	}
	arriving := durable.Exists(files.arrival()) && !durable.Exists(files.resumed())
	switch {
	case arriving:
		ctr.State = engine.Arriving
		return nil
	case !lives, now.Init.PID == 0 && e.starts(files.id): // its record may be from before a boot
		ctr.State, ctr.ExitCode = engine.Exited, exitUnknown
		return e.lateExit(files, ctr)
	}
	ctr.State, ctr.PID = engine.Running, now.Init.PID
	ctr.Definition.Engine = encodeExtra(extra{Stdio: now.Stdio})
	if frozen(files) {
		ctr.State = engine.Frozen
	}
	return nil
}

// starts reports whether this process is just starting a container. Until its first process is known,
// nobody can do anything with the container, so it does not run yet.
func (e *Engine) starts(id string) bool {
	_, is := e.starting.Load(id)
	return is
}

// living returns what is known about a container's processes, and whether it has any. If its monitor's
// record is gone, because somebody has emptied the run directory, living uses its cgroup; then the monitor
// is unknown.
func living(files container) (now liveState, lives bool, err error) {
	err = durable.Load(files.runtime(), &now)
	if !errors.Is(err, fs.ErrNotExist) {
		return now, err == nil && (now.Init.Alive() || now.Monitor.Alive()), err
	}
	now.Init, lives, err = firstProcess(files)
	return now, lives, err
}

// firstProcess finds a container's first process by its cgroup, and reports whether there is any process.
func firstProcess(files container) (first checkpoint.Identity, found bool, err error) {
	group, err := cgroup.Open(files.cgroup())
	if errors.Is(err, fs.ErrNotExist) { // as after a boot
		return first, false, nil
	}
	var pids []int
	if err == nil {
		pids, err = group.Procs()
	}
	if err != nil {
		return first, false, fmt.Errorf("look for processes: %w", err)
	}
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		if errors.Is(err, fs.ErrNotExist) || err == nil && (process.State == 'Z' || process.State == 'X') {
			continue
		}
		if err != nil {
			return first, true, err
		}
		if found = true; process.NamespaceID == 1 {
			first, err = checkpoint.Identify(pid)
			return first, true, err
		}
	}
	return first, found, nil
}

// lateExit completes the state of a container that is found to have ended: its monitor may have recorded
// that just now.
func (e *Engine) lateExit(files container, ctr *engine.Container) error {
	var was record
	if err := durable.Load(files.record(), &was); err != nil {
		return err
	}
	if was.State == engine.Exited {
		ctr.Finished, ctr.ExitCode = was.Finished, was.ExitCode
	}
	return nil
}

// frozen reports whether a container's cgroup was told to freeze, and not to thaw since.
func frozen(files container) bool {
	group, err := cgroup.Open(files.cgroup())
	if err != nil {
		return false
	}
	is, err := group.ToldToFreeze()
	return err == nil && is
}

// waitGone waits until a process has ended.
func waitGone(ctx context.Context, process checkpoint.Identity) error {
	const pause = 5 * time.Millisecond
	for process.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to end: %w", process.PID, ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}
