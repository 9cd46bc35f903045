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

// volumes finds the volumes of the engine, and empties those that an arrival fills.
type volumes struct{ adapter Adapter }

// VolumePath returns the path of a volume's content on this node, existing or not.
func (vs *volumes) VolumePath(v engine.Volume) (string, error) {
	switch v.Sort() {
	case engine.Bind:
		return v.Source, nil
	case engine.Tmpfs:
		return "", fmt.Errorf("%s is of one container: %w", v, errors.ErrUnsupported)
	}
	return vs.adapter.VolumePath(v)
}

// Volumes returns none: the engine lists its own volumes.
func (vs *volumes) Volumes(context.Context) ([]engine.StoredVolume, error) { return nil, nil }

// RemoveVolume refuses: the engine removes its own volumes.
func (vs *volumes) RemoveVolume(_ context.Context, name string) error {
	return fmt.Errorf("%w: %.80q", engine.ErrNoVolume, name)
}

// Coming returns the named volumes whose content comes with a container.
func Coming(d engine.Definition) []engine.Volume {
	return slices.DeleteFunc(slices.Clone(d.Volumes),
		func(v engine.Volume) bool { return v.Stays || v.Sort() != engine.Named })
}

// emptyVolumes empties the volumes whose content comes with the container, because the engine fills a new
// volume from the image. The volumes must be this arrival's.
func (vs *volumes) emptyVolumes(ctx context.Context, d engine.Definition) error {
	for _, v := range Coming(d) {
		made, err := vs.adapter.MadeFor(ctx, v.Name, idLabel, d.ID)
		if err == nil && !made {
			err = errors.New("another program has made it")
		}
		var path string
		if err == nil {
			path, err = vs.VolumePath(v)
		}
		if err == nil {
			err = files.EmptyTree(path)
		}
		if err != nil {
			return fmt.Errorf("empty %s of %s: %w", v, vs.adapter.Title(), err)
		}
	}
	return nil
}

// SameVolume reports whether two volumes are the same at the same path. It ignores Stays, which belongs to
// a move.
func SameVolume(a, b engine.Volume) bool {
	return a.Sort() == b.Sort() && a.Engine == b.Engine && a.Name == b.Name && a.Source == b.Source &&
		a.Path == b.Path && a.ReadOnly == b.ReadOnly
}

// SameVolumes reports whether two containers have the same volumes, in any order.
func SameVolumes(a, b []engine.Volume) bool {
	byPath := func(a, b engine.Volume) int { return cmp.Compare(a.Path, b.Path) }
	return slices.EqualFunc(slices.SortedFunc(slices.Values(a), byPath),
		slices.SortedFunc(slices.Values(b), byPath), SameVolume)
}

// BindObstacle refuses a host directory that would have to move: the engine's users do not expect Godwit to
// remove it.
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
