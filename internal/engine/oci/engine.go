package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/patience"
)

// Runtime is the name of godwit-runc in engines' configurations.
const Runtime = "godwit"

// listed limits a list: a caller that wants all containers of the node must not wait for one engine that
// hangs. Only the engine's daemon makes the list, so the engine's other programs do not count.
var listed = patience.Limit{Still: 3 * time.Second, Most: 20 * time.Second}

// Config says where an engine keeps its files.
type Config struct {
	StateDir   string // the agent's; this engine's records are below it
	RunDir     string
	Executable string // this program; "" for the running one
}

// Engine moves containers of one engine. It implements engine.Engine by its parts, each of which has its own
// state; those that are embedded have their methods here, too.
type Engine struct {
	adapter Adapter
	noAnew
	*departures
	*arrivals
	*volumes

	records *records
	lookup  *lookup
	starts  *starts
	endings *endings
	logs    *logs
	held    *held
	remains *remains

	locks    *checkpoint.Locks
	gcActive sync.Mutex // see collectGarbage

	mu sync.Mutex
	// firsts are the first processes of containers, for as long as they live.
	firsts map[string]checkpoint.Identity
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
	return newEngine(config, adapter), nil
}

func newEngine(config Config, adapter Adapter) *Engine {
	records := &records{engine: adapter.Name(), state: config.StateDir, run: config.RunDir}
	lookup := &lookup{adapter: adapter, records: records}
	e := &Engine{
		adapter: adapter, noAnew: noAnew{adapter}, volumes: &volumes{adapter},
		records: records, lookup: lookup,
		starts:  &starts{adapter: adapter, records: records, lookup: lookup},
		endings: &endings{adapter: adapter, records: records, lookup: lookup},
		logs:    &logs{adapter: adapter, records: records, seen: map[string]copiedLog{}},
		held:    &held{memories: map[string]memories{}},
		remains: &remains{adapter: adapter, records: records, lookup: lookup},
		locks:   &checkpoint.Locks{},
		firsts:  map[string]checkpoint.Identity{},
	}
	tool := &checkpoint.CRIU{}
	e.departures = &departures{
		adapter: adapter, records: records, lookup: lookup, starts: e.starts, logs: e.logs, held: e.held,
		volumes: e.volumes, remains: e.remains, locks: e.locks, criu: tool,
	}
	e.arrivals = &arrivals{
		config: config, adapter: adapter, records: records, lookup: lookup, endings: e.endings,
		volumes: e.volumes, locks: e.locks, criu: tool,
	}
	return e
}

// Sweep removes what was made for moves that failed early.
func (e *Engine) Sweep() error {
	entries, err := os.ReadDir(e.records.dir(""))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("records of containers of %s: %w", e.adapter.Title(), err)
	}
	for _, entry := range entries {
		id := entry.Name()
		if !idPattern.MatchString(id) || durable.Exists(e.records.arrivalPath(id)) ||
			durable.Exists(e.records.departurePath(id)) {
			continue
		}
		if err := e.records.forget(id); err != nil {
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
		Marker: e.starts, Restarter: e, Protector: e, Resumer: e, LeaveNoter: e.records, Leaver: e,
		LateStarter: e.endings, Releaser: e.held,
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
	coming, err := e.lookup.comingHere()
	if err != nil {
		return nil, err
	}
	asking, cancel := listed.For(ctx, e.adapter.Title(), e.lookup.answers())
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
		all = append(all, e.lookup.describe(found))
	}
	return all, ctx.Err()
}

// describeWhole adds what another node needs to make a running container.
func (e *Engine) describeWhole(ctx context.Context, found Container) (engine.Container, error) {
	ctr := e.lookup.describe(found)
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

// Inspect finds a container by name, id, or unique prefix of an id, as the engine does. Errors:
// engine.ErrNotFound, engine.ErrAway.
func (e *Engine) Inspect(ctx context.Context, ref string) (engine.Container, error) {
	if ctr, arriving, err := e.records.arriving(ref); arriving || err != nil {
		return ctr, err
	}
	if err := e.adapter.Away(); err != nil {
		return engine.Container{}, err
	}
	if idPattern.MatchString(ref) {
		found, err := e.lookup.find(ctx, ref)
		if err != nil {
			return engine.Container{}, err
		}
		return e.describeWhole(ctx, found)
	}
	found, err := e.lookup.ask(ctx, ref)
	if err != nil {
		return engine.Container{}, err
	}
	if ctr, arriving, err := e.records.arriving(e.lookup.identity(found)); arriving || err != nil {
		return ctr, err
	}
	return e.describeWhole(ctx, found)
}

// group returns the cgroup of a running container. While its first process lives, group does not query the
// engine again, because it is called all the time.
func (e *Engine) group(ctx context.Context, id string) (*cgroup.Cgroup, error) {
	e.mu.Lock()
	first, known := e.firsts[id]
	e.mu.Unlock()
	if known && first.Alive() {
		return cgroup.Of(first.PID)
	}
	found, err := e.lookup.running(ctx, id)
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
	return cgroup.Of(first.PID)
}
