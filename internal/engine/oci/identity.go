package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/records"
)

// idLabel is the label of a container that has moved, for people and for who looks for what a crash has left. Its value is the
// id that all nodes know it by. Images that are made of such a container have it too, and with them containers that are others,
// so what counts is what is remembered here.
const idLabel = "io.godwit.id"

// remembered is where it is written down which of the engine's containers one is that has come here, as long as it is here.
func (e *Engine) remembered(id string) string {
	return filepath.Join(e.config.StateDir, "engines", e.Name()+"-ids", id)
}

func (e *Engine) remember(id, own string) error { return save(e.remembered(id), own) }

// identity is the id that all nodes know a container by.
func (e *Engine) identity(found Found) string {
	d := found.Container.Definition
	if first := d.Labels[idLabel]; idPattern.MatchString(first) {
		if own, err := e.ownID(first); err == nil && own == found.ID {
			return first
		}
	}
	return d.ID
}

// ownID is the engine's own id of a container.
func (e *Engine) ownID(id string) (string, error) {
	var own string
	err := records.Load(e.remembered(id), &own)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil // it was started here
	}
	return own, err
}

// madeFor is the engine's own id of a container that was made for an arrival; "" if there is none. An agent that was killed may not
// have come to write it down. It had then not started the container, whatever others have started that have the label; that somebody has tried is seen by its state.
func (e *Engine) madeFor(ctx context.Context, id string, was arrivalRecord) (string, error) {
	if was.OwnID != "" {
		return was.OwnID, nil
	}
	labelled, err := e.adapter.List(ctx, func(string) bool { return false })
	if err != nil {
		return "", fmt.Errorf("look for container %.12s in %s: %w", id, e.adapter.Title(), err)
	}
	for _, found := range labelled {
		d, untouched := found.Container.Definition, found.Container.State == engine.Created || found.Arrival == id
		if untouched && d.Labels[idLabel] == id && d.Name == was.Definition.Name {
			return found.ID, nil
		}
	}
	return "", nil
}
