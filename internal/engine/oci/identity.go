package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/patience"
)

// idLabel is the label of a container that has moved. It is for people, and for finding leftovers of a
// crash. Its value is the ID by which all nodes know the container. Images made of such a container have
// the label, too, and so do other containers of these images. So only the record on this node counts.
const idLabel = "io.godwit.id"

// givesAgain reports whether the engine reuses IDs.
func (l *lookup) givesAgain() bool {
	_, is := l.adapter.(IDReuser)
	return is
}

// disown deletes the records of other containers that had this engine ID, which the engine has reused.
func (l *lookup) disown(engineID, id string) error {
	if !l.givesAgain() {
		return nil
	}
	entries, err := os.ReadDir(filepath.Dir(l.records.remembered("x")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		other := entry.Name()
		if !idPattern.MatchString(other) || other == id {
			continue
		}
		its, err := l.engineID(other)
		if err == nil && its == engineID {
			err = l.records.unremember(other)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whileUnused runs do, which may delete data kept by the engine's ID of a container that no longer exists.
// If another container has the ID by now, whileUnused does not run do, and reports that. No container with
// this ID arrives while do runs.
func (l *lookup) whileUnused(
	ctx context.Context, id, engineID string, do func() error,
) (used bool, err error) {
	defer l.engineIDs.Lock(engineID)()
	if its, err := l.engineID(id); err != nil || its != engineID && l.givesAgain() {
		return true, err
	}
	if err := l.adapter.Away(); err != nil {
		return false, err
	}
	_, err = l.ask(ctx, engineID)
	if errors.Is(err, engine.ErrNotFound) {
		return false, do()
	}
	return true, err
}

// namesake reports whether the engine's container is another container than the one with this ID, which
// came here and no longer exists.
func (l *lookup) namesake(found Container, id string) bool {
	return l.givesAgain() && l.identity(found) != id
}

// identity returns the ID by which all nodes know a container.
func (l *lookup) identity(found Container) string {
	d := found.Container.Definition
	if first := d.Labels[idLabel]; idPattern.MatchString(first) {
		if engineID, err := l.engineID(first); err == nil && engineID == found.ID {
			return first
		}
	}
	return d.ID
}

// engineID returns the engine's own ID of a container.
func (l *lookup) engineID(id string) (string, error) {
	var engineID string
	err := durable.Load(l.records.remembered(id), &engineID)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil // it was started here
	}
	return engineID, err
}

// madeFor returns the engine's ID of a container that was made for an arrival, or "" if there is none. An
// agent that was killed may not have recorded the ID. In that case it had not started the container, so a
// started container with the label is somebody else's. If somebody has tried to start this one, its state
// shows that.
func (l *lookup) madeFor(ctx context.Context, id string, was arrivalRecord) (string, error) {
	if was.EngineID != "" {
		return was.EngineID, nil
	}
	ctx, cancel := l.asking(ctx)
	defer cancel()
	labelled, err := l.adapter.List(ctx, func(string) bool { return false })
	if err != nil {
		return "", fmt.Errorf("look for container %.12s in %s: %w", id, l.adapter.Title(),
			patience.Explain(ctx, err))
	}
	for _, found := range labelled {
		d, untouched := found.Container.Definition, found.Container.State == engine.Created ||
			found.Arrival == id
		if untouched && d.Labels[idLabel] == id && d.Name == was.Definition.Name {
			return found.ID, nil
		}
	}
	return "", nil
}

// createLimit limits how long an engine may take to make a container, and arrivalLimit how long the engine
// and its runtime may take to reach the restore proxy.
var (
	createLimit  = patience.Limit{Still: time.Minute, Most: 5 * time.Minute}
	arrivalLimit = createLimit
)

// makingLimit bounds the wait for an engine that may still be creating a container after the agent was
// killed or gave up. If the arrival is older than makingAge, nobody waits.
var (
	makingLimit = patience.Limit{Still: 2 * time.Second, Most: time.Minute}
	makingAge   = 2 * createLimit.Most
)

// lookAgain is the time that madeLate first waits before it queries the engine again. Each further wait is
// twice as long, because a query makes the engine work, which looks as if it were creating the container.
const lookAgain = 100 * time.Millisecond

// madeLate is madeFor for the undo of an arrival. If the agent was killed or gave up while the
// engine created the container, the container could appear after the undo, never run, and keep its
// name in use. madeLate waits for this container, unless the engine reported a failure, the machine
// has rebooted, or the arrival is old. An engine that is still busy at the end is an error: the
// undo has to be tried again.
func (l *lookup) madeLate(ctx context.Context, id string, was arrivalRecord) (string, error) {
	engineID, err := l.madeFor(ctx, id, was)
	if engineID != "" || err != nil || was.Unmade {
		return engineID, err
	}
	boot, err := kernel.BootID()
	if err != nil || boot != was.Boot || time.Since(was.Began) > makingAge {
		return "", err
	}
	making, cancel := makingLimit.For(ctx, l.adapter.Title(), l.signs())
	defer cancel()
	for wait := lookAgain; engineID == "" && err == nil && making.Err() == nil; wait *= 2 {
		select {
		case <-making.Done():
		case <-time.After(wait):
		}
		engineID, err = l.madeFor(ctx, id, was)
	}
	if engineID != "" || err != nil {
		return engineID, err
	}
	var late *patience.LateError
	if err := making.Err(); !errors.As(err, &late) || !late.Still {
		return "", fmt.Errorf("wait until %s does not create container %.12s any more: %w",
			l.adapter.Title(), id, err)
	}
	return "", nil
}
