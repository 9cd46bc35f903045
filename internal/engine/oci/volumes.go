package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// VolumePath is where the content of a volume is on this node, or would be.
func (e *Engine) VolumePath(v engine.Volume) (string, error) {
	switch v.Sort() {
	case engine.Bind:
		return v.Source, nil
	case engine.Tmpfs:
		return "", fmt.Errorf("%s is of one container: %w", v, errors.ErrUnsupported)
	}
	return e.adapter.VolumePath(v)
}

// Volumes tells of none: the engine's are listed by the engine.
func (e *Engine) Volumes(context.Context) ([]engine.StoredVolume, error) { return nil, nil }

// RemoveVolume removes none.
func (e *Engine) RemoveVolume(_ context.Context, name string) error {
	return fmt.Errorf("%w: %.80q", engine.ErrNoVolume, name)
}

// Coming are the named volumes whose content comes with a container.
func Coming(d engine.Definition) []engine.Volume {
	return slices.DeleteFunc(slices.Clone(d.Volumes),
		func(v engine.Volume) bool { return v.Stays || v.Sort() != engine.Named })
}

// removeMade removes those of an arrival's volumes that were made for it. One that somebody else
// has made meanwhile stays, and one that somebody has taken since.
func (e *Engine) removeMade(ctx context.Context, id string, names []string) error {
	for _, name := range names {
		made, err := e.adapter.MadeFor(ctx, name, idLabel, id)
		if err == nil && made {
			err = e.adapter.RemoveVolume(ctx, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// emptyVolumes removes what the engine has put into volumes that come: it fills a new one from the
// image. They must be this arrival's.
func (e *Engine) emptyVolumes(ctx context.Context, d engine.Definition) error {
	for _, v := range Coming(d) {
		made, err := e.adapter.MadeFor(ctx, v.Name, idLabel, d.ID)
		if err == nil && !made {
			err = errors.New("another program has made it")
		}
		var path string
		if err == nil {
			path, err = e.VolumePath(v)
		}
		if err == nil {
			err = files.EmptyTree(path)
		}
		if err != nil {
			return fmt.Errorf("empty %s of %s: %w", v, e.adapter.Title(), err)
		}
	}
	return nil
}

// SameVolume tells whether two are the same at the same place. Whether it stays is part of a move.
func SameVolume(a, b engine.Volume) bool {
	return a.Sort() == b.Sort() && a.Engine == b.Engine && a.Name == b.Name && a.Source == b.Source &&
		a.Path == b.Path && a.ReadOnly == b.ReadOnly
}

// SameVolumes tells whether two containers have the same volumes, in any order.
func SameVolumes(a, b []engine.Volume) bool {
	byPath := func(a, b engine.Volume) int { return cmp.Compare(a.Path, b.Path) }
	return slices.EqualFunc(slices.SortedFunc(slices.Values(a), byPath),
		slices.SortedFunc(slices.Values(b), byPath), SameVolume)
}

// BindObstacle refuses a host directory that would have to move: nobody has told the engine's users
// that it is Godwit's to remove.
func BindObstacle(v engine.Volume, title string) (engine.Problem, bool) {
	if !v.Stays && !v.ReadOnly {
		return engine.Problem{
			What: v.String(), Why: "host directories of containers of " + title + " are not moved",
			Remedy: "mount the same storage there on both nodes, choose --volumes " + v.Path +
				"=skip, or use a named volume",
		}, true
	}
	if _, err := os.Stat(v.Source); err != nil {
		return engine.Problem{What: v.String(), Why: "it is not on this node", Remedy: "make it"}, true
	}
	return engine.Problem{}, false
}
