package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// Salvage passes on the received files of an arrival that never ran, before Discard removes it.
func (r *arrivals) Salvage(ctx context.Context, id string, take func(files.Tree) error) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("container %.80q: %w", id, engine.ErrNotFound)
	}
	r.waiting.End(id)
	defer r.catalog.lock(id)()
	place := r.paths.of(id)
	if !durable.Exists(place.arrival()) {
		return nil // there is no arrival, or it has become a container
	}
	if err := r.salvage(ctx, place, take); err != nil {
		return fmt.Errorf("salvage the arrival of container %.12s: %w", id, err)
	}
	return nil
}

func (r *arrivals) salvage(ctx context.Context, place container, take func(files.Tree) error) error {
	outcome, err := r.outcome(ctx, place)
	if err == nil && outcome == engine.Ran {
		err = fmt.Errorf("%w: it has been resumed", engine.ErrBusy)
	}
	if err == nil {
		err = r.processes.settle(ctx, place) // then nothing of it is mounted
	}
	if err != nil {
		return err
	}
	var was arrivalRecord
	var d engine.Definition
	err = errors.Join(durable.Load(place.arrival(), &was), durable.Load(place.definition(), &d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was not prepared, so nothing can have come
	}
	if err != nil {
		return err
	}
	inUse, err := r.volumes.pathsInUse(ctx, place.id)
	if err != nil {
		return err
	}
	trees := []files.Tree{{Kind: files.Writable, Path: place.upper()}}
	for i, v := range d.Volumes {
		path := place.volumePath(i, v)
		if ours := slices.ContainsFunc(was.Made,
			func(m madeVolume) bool { return m.Path == path && m.fills() }); ours && !inUse(path) {
			trees = append(trees, files.Tree{Kind: treeKind(v), Name: v.Key(), Path: path})
		}
	}
	for _, tree := range trees {
		if err := take(tree); err != nil {
			return err
		}
	}
	return nil
}
