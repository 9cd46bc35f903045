package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// collectGarbage forgets containers that their engine has removed. The engine does not report removals, so
// their records are compared with the engine's list. It runs in the background, one container after the
// other, because the removal of a container's network may wait for others. What fails for one container is
// tried again at the next look, and does not affect the others.
func (e *Engine) collectGarbage(listed []Container) {
	removed := e.removed(listed)
	if len(removed) == 0 || !e.gcActive.TryLock() {
		return
	}
	go func() {
		defer e.gcActive.Unlock()
		for _, id := range removed {
			_ = e.forgetRemoved(context.Background(), id)
		}
	}()
}

// removed are the containers of which there is something here, and which the engine does not list.
func (e *Engine) removed(listed []Container) (ids []string) {
	there := map[string]bool{}
	for _, found := range listed {
		there[found.ID], there[e.identity(found)] = true, true
	}
	for _, directory := range []string{filepath.Dir(e.remembered("x")),
		filepath.Dir(e.passedPath("x")), e.records("")} {
		entries, _ := os.ReadDir(directory) // there may be nothing yet
		for _, entry := range entries {
			if id := entry.Name(); idPattern.MatchString(id) && !there[id] && !e.moves(id) &&
				!slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// moves tells whether a container moves, or has not been given to its engine as a whole.
func (e *Engine) moves(id string) bool {
	return durable.Exists(e.arrivalPath(id)) || durable.Exists(e.departurePath(id)) ||
		durable.Exists(e.camePath(id))
}

// forgetRemoved forgets one, unless it has come since the engine has listed what it has.
func (e *Engine) forgetRemoved(ctx context.Context, id string) error {
	defer e.lock(id)()
	if e.moves(id) {
		return nil
	}
	if _, err := e.find(ctx, id); !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	return e.forgetGone(ctx, id)
}
