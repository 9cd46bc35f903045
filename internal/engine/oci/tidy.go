package oci

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/records"
)

// tidy forgets containers that were removed by their engine, which tells nobody: what they had here is found by what the engine lists.
func (e *Engine) tidy(ctx context.Context, listed []Found) error {
	there := map[string]bool{}
	for _, found := range listed {
		there[found.ID], there[e.identity(found)] = true, true
	}
	for _, directory := range []string{filepath.Dir(e.remembered("x")), e.records("")} {
		entries, err := os.ReadDir(directory)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if id := entry.Name(); idPattern.MatchString(id) && !there[id] && !e.moves(id) {
				if err := e.forgetRemoved(ctx, id); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// moves tells whether a container moves, or has not been given to its engine as a whole.
func (e *Engine) moves(id string) bool {
	return records.Exists(e.arrivalPath(id)) || records.Exists(e.departurePath(id)) || records.Exists(e.camePath(id))
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
	return errors.Join(e.gone(id), records.Remove(e.remembered(id)), e.forget(id))
}
