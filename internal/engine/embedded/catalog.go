package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// catalog finds the engine's containers, and combines what the disk and the kernel know about them. Its
// locks keep changes of a container apart; who only looks needs none.
type catalog struct {
	paths    paths
	locks    checkpoint.Locks
	starting sync.Map // by ID: containers that this process is just starting
}

// lock keeps other changes of a container away until the returned function is called.
func (c *catalog) lock(id string) (unlock func()) { return c.locks.Lock(id) }

// find checks an ID and that the container exists.
func (c *catalog) find(id string) (container, error) {
	if !idPattern.MatchString(id) {
		return container{}, fmt.Errorf("container %.80q: %w", id, engine.ErrNotFound)
	}
	files := c.paths.of(id)
	if !durable.Exists(files.definition()) {
		return files, fmt.Errorf("container %.12s: %w", id, engine.ErrNotFound)
	}
	return files, nil
}

// List lists all containers, in order of name. A container whose record cannot be read does not affect the
// others.
func (c *catalog) List(ctx context.Context) ([]engine.Container, error) {
	entries, err := os.ReadDir(c.paths.containers())
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var all []engine.Container
	for _, entry := range entries {
		if !idPattern.MatchString(entry.Name()) {
			continue
		}
		ctr, err := c.inspect(entry.Name())
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
func (c *catalog) Inspect(ctx context.Context, ref string) (engine.Container, error) {
	ctr, err := c.lookup(ctx, ref)
	if err != nil || ctr.PID == 0 || ctr.Definition.Passed != nil {
		return ctr, err
	}
	if spec, err := loadSpec(c.paths.of(ctr.Definition.ID)); err == nil && spec.Linux != nil {
		ctr.Definition.Passed = checkpoint.PassedCalls(ctr.PID, spec.Linux.Seccomp)
	}
	return ctr, nil
}

func (c *catalog) lookup(ctx context.Context, ref string) (engine.Container, error) {
	if idPattern.MatchString(ref) {
		return c.inspect(ref)
	}
	all, err := c.List(ctx)
	if err != nil {
		return engine.Container{}, err
	}
	var found []engine.Container
	for _, ctr := range all {
		if ctr.Definition.Name == ref {
			return c.intact(ctr)
		}
		if ref != "" && strings.HasPrefix(ctr.Definition.ID, ref) {
			found = append(found, ctr)
		}
	}
	switch len(found) {
	case 0:
		return engine.Container{}, fmt.Errorf("container %.80q: %w", ref, engine.ErrNotFound)
	case 1:
		return c.intact(found[0])
	}
	return engine.Container{}, fmt.Errorf("container %.80q: %w: %d ids begin so; give more of it",
		ref, engine.ErrNotFound, len(found))
}

// intact returns an error that says what is wrong if a container is damaged.
func (c *catalog) intact(ctr engine.Container) (engine.Container, error) {
	if ctr.State == engine.Damaged {
		return c.inspect(ctr.Definition.ID)
	}
	return ctr, nil
}

// inspect combines what the disk and the kernel know about a container.
func (c *catalog) inspect(id string) (engine.Container, error) {
	files, err := c.find(id)
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
		err = c.addProcesses(files, &ctr)
	}
	if ctr.State == engine.Exited && durable.Exists(files.halted()) {
		ctr.State = engine.Frozen
	}
	var failed error
	ctr.Leaving, failed = leavingOf(files)
	return ctr, errors.Join(err, failed)
}

// Leaves returns the notes of all leaving containers.
func (c *catalog) Leaves() (all []engine.Leave, failed error) {
	containers, err := c.List(context.Background())
	if err != nil {
		return nil, err
	}
	for _, ctr := range containers {
		leave, err := leavingOf(c.paths.of(ctr.Definition.ID))
		failed = errors.Join(failed, err)
		if leave != nil {
			all = append(all, *leave)
		}
	}
	return all, failed
}

// addProcesses adds the state of a container that was started or is arriving.
func (c *catalog) addProcesses(files container, ctr *engine.Container) error {
	now, lives, err := living(files)
	if err != nil {
		return err
	}
	arriving := durable.Exists(files.arrival()) && !durable.Exists(files.resumed())
	switch {
	case arriving:
		ctr.State = engine.Arriving
		return nil
	case !lives, now.Init.PID == 0 && c.starts(files.id): // its record may be from before a boot
		ctr.State, ctr.ExitCode = engine.Exited, exitUnknown
		return c.lateExit(files, ctr)
	}
	ctr.State, ctr.PID = engine.Running, now.Init.PID
	ctr.Definition.Engine = encodeExtra(extra{Stdio: now.Stdio})
	if frozen(files) {
		ctr.State = engine.Frozen
	}
	return nil
}

// markStarting notes that this process is starting a container, until the returned function is called.
func (c *catalog) markStarting(id string) (done func()) {
	c.starting.Store(id, true)
	return func() { c.starting.Delete(id) }
}

// starts reports whether this process is just starting a container. Until its first process is known,
// nobody can do anything with the container, so it does not run yet.
func (c *catalog) starts(id string) bool {
	_, is := c.starting.Load(id)
	return is
}

// lateExit completes the state of a container that is found to have ended: its monitor may have recorded
// that just now.
func (c *catalog) lateExit(files container, ctr *engine.Container) error {
	var was record
	if err := durable.Load(files.record(), &was); err != nil {
		return err
	}
	if was.State == engine.Exited {
		ctr.Finished, ctr.ExitCode = was.Finished, was.ExitCode
	}
	return nil
}

// nameFree refuses a name or an ID that is taken.
func (c *catalog) nameFree(ctx context.Context, d engine.Definition) error {
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	for _, ctr := range all {
		if ctr.Definition.Name == d.Name || ctr.Definition.ID == d.ID {
			return fmt.Errorf("container %s (%.12s): %w by container %.12s; remove that one or choose "+
				"another name",
				d.Name, d.ID, engine.ErrNameTaken, ctr.Definition.ID)
		}
	}
	return nil
}

// running inspects a container, which must be running and not be moving.
func (c *catalog) running(id string) (engine.Container, error) {
	ctr, err := c.inspect(id)
	switch {
	case err != nil:
		return ctr, err
	case ctr.State == engine.Running && ctr.PID > 0:
		return ctr, nil
	case ctr.State == engine.Frozen || ctr.State == engine.Arriving:
		return ctr, fmt.Errorf("container %s: %w: it is being moved", ctr.Definition.Name, engine.ErrBusy)
	case ctr.State == engine.Running:
		return ctr, fmt.Errorf("container %s: %w: it has processes, but their record in %s is gone: "+
			`only "godwit rm --force" can end it`, ctr.Definition.Name, engine.ErrBusy,
			c.paths.of(id).runDir())
	}
	return ctr, fmt.Errorf("container %s: %w: it is %s", ctr.Definition.Name, engine.ErrNotRunning, ctr.State)
}

// Wait waits until a container has ended and returns its exit code.
func (c *catalog) Wait(ctx context.Context, id string) (int, error) {
	const pause = 20 * time.Millisecond
	for {
		ctr, err := c.inspect(id)
		if err != nil {
			return 0, err
		}
		if ctr.State == engine.Exited {
			return ctr.ExitCode, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for container %s: %w", ctr.Definition.Name, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// awaitStart waits for a start that an earlier agent may have begun: while its monitor lives, the container
// will run.
func (c *catalog) awaitStart(ctx context.Context, place container) (engine.Container, error) {
	const pause = 5 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	for {
		var live liveState
		if err := durable.Load(place.runtime(), &live); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return engine.Container{}, err
		}
		ctr, err := c.inspect(place.id)
		if err != nil || ctr.State == engine.Running || !live.Monitor.Alive() {
			return ctr, err
		}
		select {
		case <-ctx.Done():
			return ctr, fmt.Errorf("wait for the monitor of container %s: %w", ctr.Definition.Name, ctx.Err())
		case <-time.After(pause):
		}
	}
}
