package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

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

// removed returns the IDs of containers that have records here but are not in the engine's list.
func (e *Engine) removed(listed []Container) (ids []string) {
	there := map[string]bool{}
	for _, found := range listed {
		there[found.ID], there[e.lookup.identity(found)] = true, true
	}
	for _, directory := range []string{filepath.Dir(e.records.remembered("x")),
		filepath.Dir(e.records.passedPath("x")), e.records.dir("")} {
		entries, _ := os.ReadDir(directory) // there may be nothing yet
		for _, entry := range entries {
			if id := entry.Name(); idPattern.MatchString(id) && !there[id] && !e.records.moves(id) &&
				!slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// forgetRemoved forgets a container unless it has arrived since the engine made its list.
func (e *Engine) forgetRemoved(ctx context.Context, id string) error {
	defer e.lock(id)()
	if e.records.moves(id) {
		return nil
	}
	if _, err := e.lookup.find(ctx, id); !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	return e.remains.forgetGone(ctx, id)
}
