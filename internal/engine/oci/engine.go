package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/patience"
)

// Runtime is the name of godwit-runc in engines' configurations.
const Runtime = "godwit"

// listed limits a list: a caller that wants all containers of the node must not wait for one engine that
// hangs. Only the engine's daemon makes the list, so the engine's other programs do not count.
var listed = patience.Limit{Still: 3 * time.Second, Most: 20 * time.Second}

var idPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Config says where an engine keeps its files.
type Config struct {
	StateDir   string // the agent's; this engine's records are below it
	RunDir     string
	Executable string // this program; "" for the running one
}

// Engine moves containers of one engine. It implements engine.Engine.
type Engine struct {
	config  Config
	adapter Adapter
	criu    *checkpoint.CRIU

	locks     checkpoint.Locks
	engineIDs checkpoint.Locks // by the engine's IDs, taken after locks: see whileUnused
	marks     checkpoint.Locks // likewise, but by the common IDs: see MarkMoved
	arrivals  checkpoint.Arrivals
	gcActive  sync.Mutex // see collectGarbage

	mu   sync.Mutex
	logs map[string]copiedLog
	// firsts are the first processes of containers, for as long as they live.
	firsts   map[string]checkpoint.Identity
	memories map[string]memories // of containers that are being examined, or that leave
}

var _ engine.Engine = (*Engine)(nil)

// New makes the engine of an adapter. The adapted engine need not run or be installed.
func New(config Config, adapter Adapter) (*Engine, error) {
	if config.Executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		config.Executable = path
	}
	return &Engine{
		config: config, adapter: adapter, criu: &checkpoint.CRIU{}, logs: map[string]copiedLog{},
		firsts: map[string]checkpoint.Identity{}, memories: map[string]memories{},
	}, nil
}

// Sweep removes what was made for moves that failed early.
func (e *Engine) Sweep() error {
	entries, err := os.ReadDir(e.records(""))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("records of containers of %s: %w", e.adapter.Title(), err)
	}
	for _, entry := range entries {
		id := entry.Name()
		if !idPattern.MatchString(id) || durable.Exists(e.arrivalPath(id)) ||
			durable.Exists(e.departurePath(id)) {
			continue
		}
		if err := e.forget(id); err != nil {
			return err
		}
	}
	return nil
}

// Name of the engine.
func (e *Engine) Name() string { return e.adapter.Name() }

// Capabilities are those that every engine of an adapter has. The engine's package adds its own.
func (e *Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{
		Marker: e, Restarter: e, Protector: e, Resumer: e, LeaveNoter: e, Leaver: e,
		LateStarter: e, Releaser: e,
	}
}

// lock keeps other changes of a container away until the returned function is called.
func (e *Engine) lock(id string) (unlock func()) { return e.locks.Lock(id) }

// lockBefore is lock for a caller whose wait ends with ctx: the holder of the lock may wait for an engine
// that hangs.
func (e *Engine) lockBefore(ctx context.Context, id string) (unlock func(), err error) {
	return e.locks.LockBefore(ctx, id)
}

// List returns all containers, in the engine's order. Error: engine.ErrAway.
func (e *Engine) List(ctx context.Context) ([]engine.Container, error) {
	if err := e.adapter.Away(); err != nil {
		return nil, err
	}
	coming, err := e.comingHere()
	if err != nil {
		return nil, err
	}
	asking, cancel := listed.For(ctx, e.adapter.Title(), e.answers())
	defer cancel()
	found, err := e.adapter.List(asking, func(engineID string) bool { _, is := coming[engineID]; return is })
	if err != nil {
		return nil, fmt.Errorf("list the containers of %s: %w", e.adapter.Title(),
			patience.Explain(asking, err))
	}
	e.collectGarbage(found)
	var all []engine.Container
	for _, found := range found {
		if ctr, is := coming[found.ID]; is {
			all = append(all, ctr)
			continue
		}
		all = append(all, e.describe(found))
	}
	return all, ctx.Err()
}

// describe converts the engine's description of a container for this package's callers.
func (e *Engine) describe(found Container) engine.Container {
	ctr := found.Container
	ctr.Definition.EngineName, ctr.Definition.ID = e.Name(), e.identity(found)
	if ctr.State == engine.Running && e.frozen(ctr.Definition.ID, ctr.PID) {
		ctr.State = engine.Frozen
	}
	e.describeLeaving(&ctr)
	return ctr
}

// Leaves returns the notes of all leaving containers.
func (e *Engine) Leaves() (all []engine.Leave, err error) {
	departures, err := durable.LoadEach[departureRecord](e.records(""), filepath.Base(e.departurePath("")))
	for _, one := range departures {
		all = append(all, one.Leave)
	}
	return all, err
}

// describeLeaving adds why a container leaves, and its original name if its name is a mark. A record that
// cannot be read says only that it leaves.
func (e *Engine) describeLeaving(ctr *engine.Container) {
	var was departureRecord
	if err := durable.Load(e.departurePath(ctr.Definition.ID), &was); errors.Is(err, os.ErrNotExist) {
		return
	}
	ctr.Leaving = &was.Leave
	if was.Name != "" && ctr.Definition.Name == was.moved().MarkedName() {
		ctr.Definition.Name = was.Name
	}
}

// describeWhole adds what another node needs to make a running container.
func (e *Engine) describeWhole(ctx context.Context, found Container) (engine.Container, error) {
	ctr := e.describe(found)
	if ctr.PID == 0 {
		return ctr, nil
	}
	process, err := e.adapter.Process(found)
	if err != nil {
		return ctr, err
	}
	stdio, err := process.stdio()
	if err != nil {
		return ctr, err
	}
	ctr.Definition.Passed = e.passed(found.ID, ctr, process)
	return ctr, e.adapter.Describe(ctx, found, stdio, &ctr.Definition)
}

// asking bounds a query that the engine answers at once unless it is busy.
func (e *Engine) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return patience.Question.For(ctx, e.adapter.Title(), e.answers())
}

// answers reports whether the program that answers queries is working. The engine's other programs say
// nothing about that: processes with their names exist as long as any container runs.
func (e *Engine) answers() patience.Signs { return patience.Program(e.adapter.Programs()[0]) }

// signs reports whether the engine is working.
func (e *Engine) signs() patience.Signs { return patience.Programs(e.adapter.Programs()...) }

// ask queries the engine for a container, by the engine's ID or a name.
func (e *Engine) ask(ctx context.Context, ref string) (Container, error) {
	ctx, cancel := e.asking(ctx)
	defer cancel()
	found, err := e.adapter.Find(ctx, ref)
	return found, patience.Explain(ctx, err)
}

// find finds a container by the ID by which all nodes know it. Errors: engine.ErrNotFound; engine.ErrAway,
// from which nobody may conclude that the container does not run.
func (e *Engine) find(ctx context.Context, id string) (Container, error) {
	if !idPattern.MatchString(id) {
		return Container{}, e.unknown(id)
	}
	if err := e.adapter.Away(); err != nil {
		return Container{}, err
	}
	engineID, err := e.engineID(id)
	if err != nil {
		return Container{}, err
	}
	return e.ask(ctx, engineID)
}

func (e *Engine) unknown(id string) error {
	return fmt.Errorf("container %.80q of %s: %w", id, e.adapter.Title(), engine.ErrNotFound)
}

// Inspect finds a container by name, id, or unique prefix of an id, as the engine does. Errors:
// engine.ErrNotFound, engine.ErrAway.
func (e *Engine) Inspect(ctx context.Context, ref string) (engine.Container, error) {
	if ctr, arriving, err := e.arriving(ref); arriving || err != nil {
		return ctr, err
	}
	if err := e.adapter.Away(); err != nil {
		return engine.Container{}, err
	}
	if idPattern.MatchString(ref) {
		found, err := e.find(ctx, ref)
		if err != nil {
			return engine.Container{}, err
		}
		return e.describeWhole(ctx, found)
	}
	found, err := e.ask(ctx, ref)
	if err != nil {
		return engine.Container{}, err
	}
	if ctr, arriving, err := e.arriving(e.identity(found)); arriving || err != nil {
		return ctr, err
	}
	return e.describeWhole(ctx, found)
}

// running finds a container, which must be running and not be moving.
func (e *Engine) running(ctx context.Context, id string) (Container, error) {
	if _, arriving, err := e.arriving(id); arriving || err != nil {
		return Container{},
			errors.Join(err, fmt.Errorf("container %.12s: %w: it is being moved", id, engine.ErrBusy))
	}
	found, err := e.find(ctx, id)
	if err != nil {
		return found, err
	}
	if found.Container.State != engine.Running || found.Container.PID <= 0 {
		return found, fmt.Errorf("container %s: %w: it is %s", found.name(), engine.ErrNotRunning,
			found.Container.State)
	}
	return found, nil
}

// group returns the cgroup of a running container. While its first process lives, group does not query the
// engine again, because it is called all the time.
func (e *Engine) group(ctx context.Context, id string) (*kernel.Cgroup, error) {
	e.mu.Lock()
	first, known := e.firsts[id]
	e.mu.Unlock()
	if known && first.Alive() {
		return kernel.CgroupOf(first.PID)
	}
	found, err := e.running(ctx, id)
	if err == nil {
		first, err = checkpoint.Identify(found.Container.PID)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		delete(e.firsts, id)
		return nil, err
	}
	e.firsts[id] = first
	return kernel.CgroupOf(first.PID)
}

// records returns the directory of this engine's records of a container's move.
func (e *Engine) records(id string) string {
	return filepath.Join(e.config.StateDir, "engines", e.Name(), id)
}

func (e *Engine) arrivalPath(id string) string { return filepath.Join(e.records(id), "arrival.json") }
func (e *Engine) departurePath(id string) string {
	return filepath.Join(e.records(id), "departure.json")
}
func (e *Engine) recordPath(id string) string { return filepath.Join(e.records(id), "resumed") }

// orphanPath returns the path of the record that says why the engine's start failed after the container was
// resumed.
func (e *Engine) orphanPath(id string) string { return filepath.Join(e.records(id), "start-failed") }
func (e *Engine) private(id string) string    { return filepath.Join(e.records(id), "private") }

// workDir returns the directory for CRIU's logs of a leaving container.
func (e *Engine) workDir(id string) string {
	return filepath.Join(e.config.RunDir, "engines", e.Name(), id)
}

// restoreDir returns the restore directory of a container, by the engine's ID.
func (e *Engine) restoreDir(engineID string) (shim.Dir, error) {
	return shim.At(e.config.RunDir, e.adapter.RestoreDir(engineID))
}
