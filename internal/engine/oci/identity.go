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

// idLabel is the label of a container that has moved, for people and for who looks for what a crash
// has left. Its value is the id that all nodes know it by. Images that are made of such a container
// have it too, and with them containers that are others, so what counts is what is remembered here.
const idLabel = "io.godwit.id"

// remembered is where it is written down which of the engine's containers one is that has come
// here, as long as it is here.
func (e *Engine) remembered(id string) string {
	return filepath.Join(e.config.StateDir, "engines", e.Name()+"-ids", id)
}

func (e *Engine) remember(id, engineID string) error { return save(e.remembered(id), engineID) }

// unremember forgets a container that has come here and is gone.
func (e *Engine) unremember(id string) error {
	return errors.Join(durable.Remove(e.passedPath(id)), durable.Remove(e.remembered(id)))
}

// givesAgain tells whether the engine gives ids again.
func (e *Engine) givesAgain() bool {
	_, is := e.adapter.(IDReuser)
	return is
}

// disown forgets that another container than this one had this id of the engine's, which has given it again.
func (e *Engine) disown(engineID, id string) error {
	if !e.givesAgain() {
		return nil
	}
	entries, err := os.ReadDir(filepath.Dir(e.remembered("x")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		other := entry.Name()
		if !idPattern.MatchString(other) || other == id {
			continue
		}
		its, err := e.engineID(other)
		if err == nil && its == engineID {
			err = e.unremember(other)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whileUnused does what may be done to what is kept by the engine's own id of a container that is
// no more, unless it is another one's by now, of which it tells. As long as that is done none
// arrives that gets the same.
func (e *Engine) whileUnused(
	ctx context.Context, id, engineID string, do func() error,
) (used bool, err error) {
	defer e.engineIDs.Lock(engineID)()
	if its, err := e.engineID(id); err != nil || its != engineID && e.givesAgain() {
		return true, err
	}
	if err := e.adapter.Away(); err != nil {
		return false, err
	}
	_, err = e.ask(ctx, engineID)
	if errors.Is(err, engine.ErrNotFound) {
		return false, do()
	}
	return true, err
}

// namesake tells whether the engine's container is another one than that of this id, which came
// here and is no more.
func (e *Engine) namesake(found Container, id string) bool {
	return e.givesAgain() && e.identity(found) != id
}

// identity is the id that all nodes know a container by.
func (e *Engine) identity(found Container) string {
	d := found.Container.Definition
	if first := d.Labels[idLabel]; idPattern.MatchString(first) {
		if engineID, err := e.engineID(first); err == nil && engineID == found.ID {
			return first
		}
	}
	return d.ID
}

// engineID is the engine's own id of a container.
func (e *Engine) engineID(id string) (string, error) {
	var engineID string
	err := durable.Load(e.remembered(id), &engineID)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil // it was started here
	}
	return engineID, err
}

// madeFor is the engine's own id of a container that was made for an arrival; "" if there is none.
// An agent that was killed may not have come to write it down. It had then not started the
// container, whatever others have started that have the label; that somebody has tried is seen by
// its state.
func (e *Engine) madeFor(ctx context.Context, id string, was arrivalRecord) (string, error) {
	if was.EngineID != "" {
		return was.EngineID, nil
	}
	ctx, cancel := e.asking(ctx)
	defer cancel()
	labelled, err := e.adapter.List(ctx, func(string) bool { return false })
	if err != nil {
		return "", fmt.Errorf("look for container %.12s in %s: %w", id, e.adapter.Title(),
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

// makingLimit bounds the wait for an engine that may still be creating a container after the agent was killed
// or gave up. makingAge is the age of an arrival from which on nobody waits.
var (
	makingLimit = patience.Limit{Still: 2 * time.Second, Most: time.Minute}
	makingAge   = 2 * createLimit.Most
)

// lookAgain is how long madeLate waits before it asks the engine again. Each further wait is twice as long: a
// question makes the engine work, and so would look like a sign that it creates the container.
const lookAgain = 100 * time.Millisecond

// madeLate is madeFor for the undo of an arrival. If the agent was killed or gave up while the
// engine created the container, the container could appear after the undo, never run, and keep its
// name in use. madeLate waits for this container, unless the engine reported a failure, the machine
// has rebooted, or the arrival is old. An engine that is still busy at the end is an error: the
// undo has to be tried again.
func (e *Engine) madeLate(ctx context.Context, id string, was arrivalRecord) (string, error) {
	engineID, err := e.madeFor(ctx, id, was)
	if engineID != "" || err != nil || was.Unmade {
		return engineID, err
	}
	boot, err := kernel.BootID()
	if err != nil || boot != was.Boot || time.Since(was.Began) > makingAge {
		return "", err
	}
	making, cancel := makingLimit.For(ctx, e.adapter.Title(), e.signs())
	defer cancel()
	for wait := lookAgain; engineID == "" && err == nil && making.Err() == nil; wait *= 2 {
		select {
		case <-making.Done():
		case <-time.After(wait):
		}
		engineID, err = e.madeFor(ctx, id, was)
	}
	if engineID != "" || err != nil {
		return engineID, err
	}
	var late *patience.LateError
	if err := making.Err(); !errors.As(err, &late) || !late.Still {
		return "", fmt.Errorf("wait until %s does not create container %.12s any more: %w",
			e.adapter.Title(), id, err)
	}
	return "", nil
}
