package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/patience"
)

// alive is the state of a running container according to the kernel and the runtime.
type alive struct {
	found  Container
	group  *cgroup.Cgroup
	reader int         // process that reads its output
	log    string      // path of its log; "" if the log does not move
	spec   *specs.Spec // with which the runtime made it
	stdio  []string
}

// lookup asks the engine for containers, and knows which of its IDs belongs to which container.
type lookup struct {
	adapter   Adapter
	records   *records
	engineIDs checkpoint.Locks // by the engine's IDs, taken after the engine's locks: see whileUnused
}

// answers reports whether the program that answers queries is working. The engine's other programs say
// nothing about that: processes with their names exist as long as any container runs.
func (l *lookup) answers() patience.Signs { return patience.Program(l.adapter.Programs()[0]) }

// asking bounds a query that the engine answers at once unless it is busy.
func (l *lookup) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return patience.Question.For(ctx, l.adapter.Title(), l.answers())
}

// ask queries the engine for a container, by the engine's ID or a name.
func (l *lookup) ask(ctx context.Context, ref string) (Container, error) {
	ctx, cancel := l.asking(ctx)
	defer cancel()
	found, err := l.adapter.Find(ctx, ref)
	return found, patience.Explain(ctx, err)
}

// signs reports whether the engine is working.
func (l *lookup) signs() patience.Signs { return patience.Programs(l.adapter.Programs()...) }

func (l *lookup) unknown(id string) error {
	return fmt.Errorf("container %.80q of %s: %w", id, l.adapter.Title(), engine.ErrNotFound)
}

// find finds a container by the ID by which all nodes know it. Errors: engine.ErrNotFound; engine.ErrAway,
// from which nobody may conclude that the container does not run.
func (l *lookup) find(ctx context.Context, id string) (Container, error) {
	if !idPattern.MatchString(id) {
		return Container{}, l.unknown(id)
	}
	if err := l.adapter.Away(); err != nil {
		return Container{}, err
	}
	engineID, err := l.engineID(id)
	if err != nil {
		return Container{}, err
	}
	return l.ask(ctx, engineID)
}

// running finds a container, which must be running and not be moving.
func (l *lookup) running(ctx context.Context, id string) (Container, error) {
	if _, arriving, err := l.records.arriving(id); arriving || err != nil {
		return Container{},
			errors.Join(err, fmt.Errorf("container %.12s: %w: it is being moved", id, engine.ErrBusy))
	}
	found, err := l.find(ctx, id)
	if err != nil {
		return found, err
	}
	if found.Container.State != engine.Running || found.Container.PID <= 0 {
		return found, fmt.Errorf("container %s: %w: it is %s", found.name(), engine.ErrNotRunning,
			found.Container.State)
	}
	return found, nil
}

// restoreDir returns the restore directory of a container, by the engine's ID.
func (l *lookup) restoreDir(engineID string) (shim.Dir, error) {
	return shim.At(l.records.run, l.adapter.RestoreDir(engineID))
}

// comingHere returns all containers that are arriving and have not been resumed, by the engine's IDs.
func (l *lookup) comingHere() (map[string]engine.Container, error) {
	entries, err := os.ReadDir(l.records.dir(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("records of containers of %s: %w", l.adapter.Title(), err)
	}
	coming := map[string]engine.Container{}
	for _, entry := range entries {
		was, is, err := l.records.arrivalOf(entry.Name())
		if err != nil {
			return nil, err
		}
		if is && was.EngineID != "" {
			coming[was.EngineID] = engine.Container{Definition: was.Definition, State: engine.Arriving}
		}
	}
	return coming, nil
}

// orphanError says why a running container is an orphan, until settle finds that it has ended. It returns
// nil if the container is no orphan.
func (l *lookup) orphanError(id string) error {
	var why string
	err := durable.Load(l.records.orphanPath(id), &why)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("container %.12s runs, but its start by %s has failed (%s): the "+
		"engine cannot start, stop or move it until its processes have ended",
		id, l.adapter.Title(), why))
}

// awaitRemoved waits until the engine no longer knows a container.
func (l *lookup) awaitRemoved(ctx context.Context, engineID string) error {
	const pause = 10 * time.Millisecond
	ctx, cancel := l.asking(ctx)
	defer cancel()
	for {
		_, err := l.ask(ctx, engineID)
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		select {
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), err)
			return fmt.Errorf("wait for %s to remove container %.12s: %w", l.adapter.Title(), engineID, err)
		case <-time.After(pause):
		}
	}
}

// describe converts the engine's description of a container for this package's callers.
func (l *lookup) describe(found Container) engine.Container {
	ctr := found.Container
	ctr.Definition.EngineName, ctr.Definition.ID = l.adapter.Name(), l.identity(found)
	if ctr.State == engine.Running && l.records.frozen(ctr.Definition.ID, ctr.PID) {
		ctr.State = engine.Frozen
	}
	l.records.describeLeaving(&ctr)
	return ctr
}

// removeGroup removes the cgroup of an arrival that its engine has removed. If the engine's daemon was
// killed meanwhile, the engine may not know the cgroup, which its runtime had just made. A cgroup with
// processes stays: they may be those of a new container with that name. Errors are ignored: an undo must
// not wait for an empty cgroup.
func (l *lookup) removeGroup(engineID string) {
	dir, err := l.restoreDir(engineID)
	if err != nil {
		return
	}
	if group, err := groupIn(dir); err == nil {
		_ = group.Remove() // best effort
	}
}
