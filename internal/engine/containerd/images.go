package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"

	content "github.com/containerd/containerd/api/services/content/v1"
	diff "github.com/containerd/containerd/api/services/diff/v1"
	images "github.com/containerd/containerd/api/services/images/v1"
	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// Bounds of what is kept of an image.
const (
	maxManifest   = 4 << 20
	maxManifests  = 64 // of an index
	maxIndexDepth = 3
)

// imageStore is the images of a containerd. Content and snapshots are a namespace's own, but what is the same is there once.
type imageStore struct {
	containerd *adapter
	content    content.ContentClient
	diff       diff.DiffClient
	images     images.ImagesClient
	leases     leases.LeasesClient
	plugins    introspection.IntrospectionClient

	taking    chan struct{} // full while containerd takes an image
	measuring singleflight.Group
	measured  sync.Map // bytes of archives of compressed layers, by DiffID
}

var _ engine.Images = (*imageStore)(nil)

func newImageStore(containerd *adapter, connection *grpc.ClientConn) *imageStore {
	return &imageStore{
		containerd: containerd, content: content.NewContentClient(connection), diff: diff.NewDiffClient(connection),
		images: images.NewImagesClient(connection), leases: leases.NewLeasesClient(connection),
		plugins: introspection.NewIntrospectionClient(connection), taking: make(chan struct{}, 1),
	}
}

// platformImage is what a namespace has of an image for a platform that this node is of.
type platformImage struct {
	id     string
	config []byte
	layers []string
}

// platformImages are what a namespace has of what an image's name leads to.
func (s *imageStore) platformImages(ctx context.Context, namespace string, target *types.Descriptor, depth int) ([]platformImage, error) {
	raw, err := s.small(ctx, namespace, target.GetDigest(), maxManifest)
	if err != nil || raw == nil {
		return nil, err
	}
	if !mediatypes.MediaType(target.GetMediaType()).IsIndex() {
		return s.manifestImage(ctx, namespace, raw)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil || depth == maxIndexDepth || len(index.Manifests) > maxManifests {
		return nil, nil //nolint:nilerr // nothing that this package understands
	}
	var all []platformImage
	for _, one := range index.Manifests {
		if !one.MediaType.IsIndex() && !one.MediaType.IsImage() { // a checkpoint's memory, for one
			continue
		}
		found, err := s.platformImages(ctx, namespace, &types.Descriptor{MediaType: string(one.MediaType), Digest: one.Digest.String()}, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (s *imageStore) manifestImage(ctx context.Context, namespace string, raw []byte) ([]platformImage, error) {
	var manifest v1.Manifest
	if json.Unmarshal(raw, &manifest) != nil {
		return nil, nil
	}
	id := manifest.Config.Digest.String()
	config, err := s.small(ctx, namespace, id, imagestore.MaxConfig)
	if err != nil || config == nil {
		return nil, err
	}
	parsed, err := imagestore.Parse(id, config)
	if err != nil { // it is for another platform, or no image of a container
		return nil, nil //nolint:nilerr // said
	}
	return []platformImage{{id, config, parsed.Layers}}, nil
}

// of finds the image that a container was made from by its name, if that leads to the layers of the container still. None: nil.
func (s *imageStore) of(ctx context.Context, namespace, name, chain string) (*platformImage, error) {
	reply, err := s.images.Get(within(ctx, namespace), &images.GetImageRequest{Name: name})
	if missing(err) {
		return nil, nil //nolint:nilnil // said
	}
	if err != nil {
		return nil, fmt.Errorf("ask containerd about image %.80q: %w", name, err)
	}
	all, err := s.platformImages(ctx, namespace, reply.GetImage().GetTarget(), 0)
	for _, one := range all {
		if chains := imagestore.Chains(one.layers); chains[len(chains)-1] == chain {
			return &one, nil
		}
	}
	return nil, err
}

// each tells of all images of all namespaces, with their names.
func (s *imageStore) each(ctx context.Context, tell func(name string, one platformImage)) error {
	spaces, err := s.spaces(ctx)
	if err != nil {
		return err
	}
	for _, namespace := range spaces {
		listed, err := s.images.List(within(ctx, namespace), &images.ListImagesRequest{})
		if missing(err) { // the namespace was removed meanwhile
			continue
		}
		if err != nil {
			return fmt.Errorf("list the images of containerd: %w", err)
		}
		for _, named := range listed.GetImages() {
			all, err := s.platformImages(ctx, namespace, named.GetTarget(), 0)
			if err != nil {
				return err
			}
			for _, one := range all {
				tell(named.GetName(), one)
			}
		}
	}
	return nil
}

// Image finds an image by the digest of its configuration.
func (s *imageStore) Image(ctx context.Context, id string) (engine.Image, error) {
	found := engine.Image{}
	err := s.each(ctx, func(name string, one platformImage) {
		if one.id == id {
			found.ID, found.Config, found.Layers = id, one.config, one.layers
			found.Names = withName(found.Names, name)
		}
	})
	if err == nil && found.ID == "" {
		err = fmt.Errorf("image %.80q of containerd: %w", id, engine.ErrNoImage)
	}
	return found, err
}

// withName adds a name, short, as users write it, if it is one.
func withName(names []string, name string) []string {
	if short := imagestore.FamiliarName(name); imagestore.CheckName(name) == nil && !slices.Contains(names, short) {
		return append(names, short)
	}
	return names
}

// AllImages tells of all: what is of another version of one may be much like it.
func (s *imageStore) AllImages(ctx context.Context) (all []engine.Image, err error) {
	err = s.each(ctx, func(name string, one platformImage) {
		all = append(all, engine.Image{ID: one.id, Names: withName(nil, name), Layers: one.layers})
	})
	return all, err
}

// Lacks tells what is missing of an image: nothing if there is a snapshot of its layers, which is all that a container needs, or if it is
// not known which layers it has.
func (s *imageStore) Lacks(ctx context.Context, image engine.Image) (engine.Lack, error) {
	if err := s.containerd.Away(); err != nil {
		return engine.Lack{}, err
	}
	if err := checkNamespace(image.Namespace); err != nil {
		return engine.Lack{}, err
	}
	here, err := s.stacked(ctx, image)
	if err != nil || here == len(image.Layers) {
		return engine.Lack{}, err
	}
	return engine.Lack{Image: true, Layers: image.Layers[here:]}, nil
}

// stacked counts the layers, from the lowest on, that containerd has upon each other.
func (s *imageStore) stacked(ctx context.Context, image engine.Image) (int, error) {
	for i, chain := range imagestore.Chains(image.Layers) {
		if is, err := s.containerd.hasSnapshot(ctx, image.Namespace, chain); !is || err != nil {
			return i, err
		}
	}
	return len(image.Layers), nil
}

// hasSnapshot tells whether a namespace has a snapshot, also if it has no namespace of that name.
func (a *adapter) hasSnapshot(ctx context.Context, namespace, key string) (bool, error) {
	_, err := a.snapshots.Stat(within(ctx, namespace), &snapshots.StatSnapshotRequest{Snapshotter: snapshotter, Key: key})
	if err != nil && !missing(err) {
		return false, fmt.Errorf("ask containerd for snapshot %s: %w", key, err)
	}
	return err == nil, nil
}

// LayerBytes is how large the archive of a layer is that is here. One that is kept compressed is read for that, once.
func (s *imageStore) LayerBytes(diffID string) (int64, error) {
	if bytes, known := s.measured.Load(diffID); known {
		if bytes, is := bytes.(int64); is {
			return bytes, nil
		}
	}
	kept, err := s.keeps(diffID)
	if err != nil || kept.digest == diffID {
		return kept.bytes, err
	}
	bytes, err, _ := s.measuring.Do(diffID, func() (any, error) {
		archive, err := s.OpenLayer(diffID)
		if err != nil {
			return int64(0), err
		}
		defer archive.Close()
		bytes, err := io.Copy(io.Discard, archive)
		if err != nil {
			return int64(0), fmt.Errorf("layer %s of containerd: %w", diffID, err)
		}
		s.measured.Store(diffID, bytes)
		return bytes, nil
	})
	size, _ := bytes.(int64) // said
	return size, err
}

// keeps finds the archive of a layer. Error: engine.ErrNoLayer.
func (s *imageStore) keeps(diffID string) (blob, error) {
	if err := s.containerd.Away(); err != nil {
		return blob{}, err
	}
	unknown := fmt.Errorf("layer %.80q of containerd: %w", diffID, engine.ErrNoLayer)
	if imagestore.CheckDigest(diffID) != nil {
		return blob{}, unknown
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := s.layer(ctx, diffID)
	if err == nil && found == nil {
		err = unknown
	}
	if err != nil {
		return blob{}, err
	}
	return *found, nil
}

// OpenLayer opens the archive of a layer. Whatever it is kept as: at its end it was the layer, or reading fails.
func (s *imageStore) OpenLayer(diffID string) (io.ReadCloser, error) {
	kept, err := s.keeps(diffID)
	if err != nil {
		return nil, err
	}
	in, err := s.open(context.Background(), kept)
	if err != nil {
		return nil, err
	}
	archive, err := imagestore.OpenVerified(in, diffID)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("layer %s of containerd: %w", diffID, err), in.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{archive, in}, nil
}

// Sync brings what containerd keeps to the disk.
func (s *imageStore) Sync(ctx context.Context) error {
	roots, err := s.roots(ctx)
	for _, root := range roots {
		err = errors.Join(err, files.Sync(root))
	}
	return err
}

// roots are the directories of content and of snapshots.
func (s *imageStore) roots(ctx context.Context) (roots []string, err error) {
	reply, err := s.plugins.Plugins(ctx, &introspection.PluginsRequest{
		Filters: []string{"type==io.containerd.content.v1,id==content", "type==io.containerd.snapshotter.v1,id==" + snapshotter},
	})
	if err != nil {
		return nil, fmt.Errorf("ask containerd where it keeps its files: %w", err)
	}
	for _, one := range reply.GetPlugins() {
		if root := one.GetExports()["root"]; filepath.IsAbs(root) {
			roots = append(roots, root)
		}
	}
	if len(roots) != 2 {
		return nil, fmt.Errorf("containerd does not say where it keeps content and snapshots: %q", roots)
	}
	return roots, nil
}
