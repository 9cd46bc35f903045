package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/fetch"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/files/parts"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// takeTries is how often an image is brought that somebody removes from its engine meanwhile.
const takeTries = 3

// taking is an image that comes to an engine which keeps images itself. What the engine lacks comes
// into the spool, from wherever it is nearest, and the engine takes all of it at once.
type taking struct {
	mover   *Mover
	images  engine.Images
	image   engine.Image
	request *api.FetchRequest
	told    migration.Layers
}

// fetchForEngine is fetch for an engine that keeps images itself.
func (m *Mover) fetchForEngine(
	ctx context.Context, from identity.Node, request *api.FetchRequest, tell func(migration.Layers) error,
) error {
	images, err := m.engines.ImagesOf(request.Engine)
	if err == nil && images == nil {
		err = fmt.Errorf("%w: engine %.40q keeps no images", api.ErrInvalid, request.Engine)
	}
	if err != nil {
		return err
	}
	parsed, err := image.Parse(request.Image, request.ConfigJson)
	if err != nil {
		return fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	if err := m.spool.Sweep(); err != nil {
		return err
	}
	t := &taking{
		mover: m, images: images, request: request,
		image: engine.Image{
			ID: parsed.ID, Names: request.Names, Config: request.ConfigJson, Layers: parsed.Layers,
			Namespace: request.Namespace, Manifests: request.Manifests,
		},
	}
	for try := 1; ; try++ {
		lack, err := images.Lacks(ctx, t.image)
		if err != nil {
			return err
		}
		t.told.Count, t.told.Here = len(t.image.Layers), len(t.image.Layers)-len(lack.Layers)
		if !lack.Image { // an engine may have finished taking it after the caller gave up
			return errors.Join(m.spool.Remove(t.spooled()), tell(t.told))
		}
		if err := t.bring(ctx, from, lack.Layers, tell); err != nil {
			return err
		}
		if err = images.Take(ctx, t.image, t.open); err == nil {
			m.letWrite(ctx, func() error { return images.Sync(context.WithoutCancel(ctx)) })
			return errors.Join(m.spool.Remove(slices.Concat(t.spooled(), lack.Layers)), tell(t.told))
		}
		if try == takeTries || !t.changed(ctx, lack) {
			return errors.Join(err, tell(t.told)) // what has come is there the next time
		}
	}
}

// spooled names what the spool may have for the image: its layers, and what the source keeps them as.
func (t *taking) spooled() []string {
	names := slices.Clone(t.image.Layers)
	for _, layer := range t.request.Layers {
		names = append(names, layer.DiffId)
	}
	return names
}

// changed reports whether an engine lacks something else than it did, because another image was
// removed from it, or came; or whether a layer has left the spool with the same image of another
// engine.
func (t *taking) changed(ctx context.Context, was engine.Lack) bool {
	if slices.ContainsFunc(was.Layers, func(diffID string) bool { return !t.mover.OnNode(diffID) }) {
		return true
	}
	now, err := t.images.Lacks(ctx, t.image)
	return err == nil && !slices.Equal(now.Layers, was.Layers)
}

// bring brings the layers that are not on this node.
func (t *taking) bring(
	ctx context.Context, from identity.Node, lacking []string, tell func(migration.Layers) error,
) error {
	if err := t.checkKept(from, lacking); err != nil {
		return err
	}
	missing, err := t.awaitOthers(ctx, t.missing(lacking))
	if err != nil || len(missing) == 0 {
		return err
	}
	m := t.mover
	if err := m.checkRoom(missing); err != nil {
		return err
	}
	running := fetch.New(fetch.Config{
		Store: incoming{m.spool, m, t.image.Layers}, Layers: t.wanted(ctx, missing),
		Holders:  m.holders(ctx, from, t.request, missing),
		Patience: m.patience,
	})
	before := t.told.Taken
	err = m.follow(ctx, running, func() error {
		t.told.Taken = slices.Concat(before, describeTaken(running.Taken()))
		return tell(t.told)
	})
	m.speeds.learn(running.Taken())
	return err
}

// checkKept wants layers that are not here to be where the image is: an engine may have removed
// what it has unpacked.
func (t *taking) checkKept(from identity.Node, lacking []string) error {
	for _, diffID := range lacking {
		told := slices.ContainsFunc(t.request.Layers,
			func(layer *api.Layer) bool { return layer.DiffId == diffID })
		if !told && !t.mover.OnNode(diffID) {
			return fmt.Errorf("layer %s of the image is not here, and %s of %s has not kept it: pull the "+
				"image again there, or here", diffID, t.request.Engine, from.Name)
		}
	}
	return nil
}

// awaitOthers waits until nobody else brings any of some layers, and lists those that have not
// come. Who brings one may just have lost the way to it, and then what has come of it tells what is
// missing.
func (t *taking) awaitOthers(ctx context.Context, layers []*api.Layer) (missing []*api.Layer, err error) {
	for _, layer := range layers {
		here, err := t.mover.spool.Await(ctx, layer.DiffId)
		if err != nil {
			return nil, err
		}
		if !here {
			missing = append(missing, layer)
		}
	}
	return missing, nil
}

// missing lists those layers that nobody on this node has. Of one that the caller has not, either,
// no size is known.
func (t *taking) missing(lacking []string) (missing []*api.Layer) {
	for _, diffID := range lacking {
		if t.mover.OnNode(diffID) {
			continue
		}
		for _, layer := range t.request.Layers {
			if layer.DiffId == diffID {
				missing = append(missing,
					&api.Layer{DiffId: diffID, ArchiveBytes: layer.ArchiveBytes,
						StoredBytes: layer.StoredBytes})
				break
			}
		}
	}
	return missing
}

// wanted says of missing layers what is here and may have much in common with them.
func (t *taking) wanted(ctx context.Context, missing []*api.Layer) []fetch.Layer {
	var known []image.Image
	if all, err := t.images.AllImages(ctx); err == nil { // without it, whole layers come
		for _, one := range all {
			known = append(known, image.Image{ID: one.ID, Names: one.Names, Layers: one.Layers})
		}
	}
	wanted := make([]fetch.Layer, len(missing))
	for i, layer := range missing {
		wanted[i] = fetch.Layer{DiffID: layer.DiffId, Archive: layer.ArchiveBytes}
		if layer.ArchiveBytes <= smallLayer {
			continue
		}
		whole := image.Image{ID: t.image.ID, Names: t.image.Names, Layers: t.image.Layers}
		wanted[i].Similar = image.SimilarLayers(whole, known, layer.DiffId, func(diffID string) bool {
			_, _, err := t.mover.layer(diffID)
			return err == nil
		})
		if begun := t.mover.spool.Begun(layer.DiffId); begun != "" {
			wanted[i].Similar, wanted[i].Begun = append([]string{begun}, wanted[i].Similar...), true
		}
	}
	return wanted
}

// open opens a layer that is on this node: it has just come, or is here for another image.
func (t *taking) open(diffID string) (io.ReadCloser, int64, error) {
	if bytes, err := t.mover.spool.Size(diffID); err == nil {
		archive, err := t.mover.spool.OpenArchive(diffID)
		return archive, bytes, err
	}
	info, keeper, err := t.mover.layer(diffID)
	if err != nil {
		return nil, 0, err
	}
	archive, err := keeper.OpenArchive(diffID)
	return archive, info.Archive, err
}

// incoming is where layers come to, and what they may be put together of.
type incoming struct {
	*image.Spool
	mover  *Mover
	layers []string // of the image
}

var _ fetch.Store = incoming{}

// BringLayer takes a layer as its archive, whatever it comes as, and what is kept as a layer as it comes.
func (i incoming) BringLayer(ctx context.Context, digest string, r io.Reader, most int64) error {
	if slices.Contains(i.layers, digest) {
		return i.Spool.BringLayer(ctx, digest, r, most)
	}
	return i.BringBlob(ctx, digest, r, most)
}

// Parts tells of the parts of what has come of a layer, or of a layer that somebody keeps here.
func (i incoming) Parts(ctx context.Context, name string, emit func([]parts.Part) error) error {
	_, keeper, err := i.mover.layer(name)
	if err != nil {
		return i.Spool.Parts(ctx, name, emit)
	}
	return keeper.Parts(ctx, name, emit)
}

// OpenArchive opens one of these.
func (i incoming) OpenArchive(name string) (io.ReadCloser, error) {
	_, keeper, err := i.mover.layer(name)
	if err != nil {
		return i.Spool.OpenArchive(name)
	}
	return keeper.OpenArchive(name)
}
