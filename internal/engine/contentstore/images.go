package contentstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	content "github.com/containerd/containerd/api/services/content/v1"
	diff "github.com/containerd/containerd/api/services/diff/v1"
	images "github.com/containerd/containerd/api/services/images/v1"
	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/files"
	imagestore "github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/patience"
)

// Bounds of an image's documents.
const (
	maxManifest   = 4 << 20
	maxManifests  = 64 // of an index
	maxIndexDepth = 3
)

// snapshotter is the one whose snapshots are overlays.
const snapshotter = oci.Snapshotter

// Config says whose images a store holds.
type Config struct {
	Connection *grpc.ClientConn
	// Away returns why containerd is not here, wrapping engine.ErrAway, or nil.
	Away func() error
	// Check refuses a namespace in which nothing may be made.
	Check func(namespace string) error
	// Name returns a name for an image that has come and has no other yet, from its configuration and from
	// the name's target.
	Name func(id, target string) string
	// Whole means that an image is unusable without the archives of all layers, even if they are unpacked.
	Whole bool
}

// Store is the images of a containerd. Content and snapshots belong to a namespace, but identical ones are
// stored once.
type Store struct {
	config     Config
	content    content.ContentClient
	containers containers.ContainersClient
	diff       diff.DiffClient
	images     images.ImagesClient
	leases     leases.LeasesClient
	namespaces namespaces.NamespacesClient
	plugins    introspection.IntrospectionClient
	snapshots  snapshots.SnapshotsClient

	taking    chan struct{}                // full while containerd takes an image
	mostOf    func(compressed int64) int64 // bytes of an archive
	measuring singleflight.Group
	measured  sync.Map // bytes of archives of compressed layers, by DiffID
}

var _ engine.Images = (*Store)(nil)

// New makes a store. containerd need not run, or be there.
func New(config Config) *Store {
	c := config.Connection
	return &Store{
		config: config, content: content.NewContentClient(c), containers: containers.NewContainersClient(c),
		diff:   diff.NewDiffClient(c),
		images: images.NewImagesClient(c), leases: leases.NewLeasesClient(c),
		namespaces: namespaces.NewNamespacesClient(c),
		plugins:    introspection.NewIntrospectionClient(c), snapshots: snapshots.NewSnapshotsClient(c),
		taking: make(chan struct{}, 1), mostOf: imagestore.MostOf,
	}
}

// Within sets the namespace of a call, replacing an earlier one.
func Within(ctx context.Context, namespace string) context.Context {
	told, _ := metadata.FromOutgoingContext(ctx) // none yet
	told = told.Copy()
	told.Set("containerd-namespace", namespace)
	return metadata.NewOutgoingContext(ctx, told)
}

func missing(err error) bool { return status.Code(err) == codes.NotFound }

// platformImages returns the images of a name's target for the platform of this node, in a namespace.
func (s *Store) platformImages(ctx context.Context, namespace string, target *types.Descriptor,
	above [][]byte) ([]engine.Image, error) {
	raw, err := s.small(ctx, namespace, target.GetDigest(), maxManifest)
	if err != nil || raw == nil {
		return nil, err
	}
	documents := append(slices.Clip(above), raw)
	if !mediatypes.MediaType(target.GetMediaType()).IsIndex() {
		return s.manifestImage(ctx, namespace, documents)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil || len(documents) > maxIndexDepth ||
		len(index.Manifests) > maxManifests {
		return nil, nil //nolint:nilerr // nothing that this package understands
	}
	var all []engine.Image
	for _, one := range index.Manifests {
		if !one.MediaType.IsIndex() && !one.MediaType.IsImage() { // for example a checkpoint's memory
			continue
		}
		found, err := s.platformImages(ctx, namespace,
			&types.Descriptor{MediaType: string(one.MediaType), Digest: one.Digest.String()}, documents)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (s *Store) manifestImage(ctx context.Context, namespace string, documents [][]byte) ([]engine.Image,
	error) {
	var manifest v1.Manifest
	if json.Unmarshal(documents[len(documents)-1], &manifest) != nil {
		return nil, nil
	}
	id := manifest.Config.Digest.String()
	config, err := s.small(ctx, namespace, id, imagestore.MaxConfig)
	if err != nil || config == nil {
		return nil, err
	}
	parsed, err := imagestore.Parse(id, config)
	if err != nil { // for another platform, or no image of a container
		return nil, nil //nolint:nilerr // said
	}
	found := engine.Image{ID: id, Config: config, Layers: parsed.Layers, Namespace: namespace,
		Manifests: documents}
	for _, layer := range manifest.Layers {
		found.Blobs = append(found.Blobs, layer.Digest.String())
	}
	return []engine.Image{found}, nil
}

// Of finds the image from which a container was made, by its name, if the name still leads to the layers of
// the container. nil if there is none.
func (s *Store) Of(ctx context.Context, namespace, name, chain string) (*engine.Image, error) {
	reply, err := s.images.Get(Within(ctx, namespace), &images.GetImageRequest{Name: name})
	if missing(err) {
		return nil, nil //nolint:nilnil // said
	}
	if err != nil {
		return nil, fmt.Errorf("ask containerd about image %.80q: %w", name, err)
	}
	all, err := s.platformImages(ctx, namespace, reply.GetImage().GetTarget(), nil)
	for _, one := range all {
		if chains := imagestore.Chains(one.Layers); chains[len(chains)-1] == chain {
			return &one, nil
		}
	}
	return nil, err
}

// In passes the images of a namespace, with the targets of their names, to tell.
func (s *Store) In(ctx context.Context, namespace string, tell func(target string, one engine.Image)) error {
	return s.eachOf(ctx, namespace, func(_, target string, one engine.Image) { tell(target, one) })
}

// each passes all images of all namespaces, with their names, to tell.
func (s *Store) each(ctx context.Context, tell func(name string, one engine.Image)) error {
	spaces, err := s.spaces(ctx)
	for _, namespace := range spaces {
		if err == nil {
			err = s.eachOf(ctx, namespace, func(name, _ string, one engine.Image) { tell(name, one) })
		}
	}
	return err
}

// eachOf passes all images of a namespace, with their names and the names' targets, to tell.
func (s *Store) eachOf(ctx context.Context, namespace string,
	tell func(name, target string, one engine.Image)) error {
	listed, err := s.images.List(Within(ctx, namespace), &images.ListImagesRequest{})
	if missing(err) { // the namespace was removed meanwhile
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the images of containerd: %w", err)
	}
	for _, named := range listed.GetImages() {
		all, err := s.platformImages(ctx, namespace, named.GetTarget(), nil)
		if err != nil {
			return err
		}
		for _, one := range all {
			tell(named.GetName(), named.GetTarget().GetDigest(), one)
		}
	}
	return nil
}

// Image finds an image by the digest of its configuration.
func (s *Store) Image(ctx context.Context, id string) (engine.Image, error) {
	found := engine.Image{}
	err := s.each(ctx, func(name string, one engine.Image) {
		if one.ID == id {
			found.ID, found.Config, found.Layers = id, one.Config, one.Layers
			found.Names = withName(found.Names, name)
		}
	})
	if err == nil && found.ID == "" {
		err = fmt.Errorf("image %.80q of containerd: %w", id, engine.ErrNoImage)
	}
	return found, err
}

// withName adds a valid name, in the short form that users write.
func withName(names []string, name string) []string {
	if short := imagestore.FamiliarName(name); imagestore.CheckName(name) == nil &&
		!slices.Contains(names, short) {
		return append(names, short)
	}
	return names
}

// AllImages returns all images: another version of an image may be similar to it.
func (s *Store) AllImages(ctx context.Context) (all []engine.Image, err error) {
	err = s.each(ctx, func(name string, one engine.Image) {
		all = append(all, engine.Image{ID: one.ID, Names: withName(nil, name), Layers: one.Layers})
	})
	return all, err
}

// Lacks returns what is missing of an image: nothing if there is a snapshot of its layers, which is all
// that a container needs, or if its layers are not known.
func (s *Store) Lacks(ctx context.Context, image engine.Image) (engine.Lack, error) {
	if err := s.config.Away(); err != nil {
		return engine.Lack{}, err
	}
	if err := s.config.Check(image.Namespace); err != nil {
		return engine.Lack{}, err
	}
	if s.config.Whole {
		return s.lacksOf(ctx, image)
	}
	here, err := s.stacked(ctx, image)
	if err != nil || here == len(image.Layers) {
		return engine.Lack{}, err
	}
	return engine.Lack{Image: true, Layers: image.Layers[here:]}, nil
}

// lacksOf returns the archives that an absent or incomplete image lacks here.
func (s *Store) lacksOf(ctx context.Context, image engine.Image) (lack engine.Lack, err error) {
	archives := image.Layers
	if len(image.Manifests) > 0 {
		documents, err := parseDocuments(image)
		if err != nil {
			return lack, err
		}
		archives = documents.digests()
	}
	lack.Image = true
	for _, digest := range archives {
		found, err := s.kept(ctx, image, digest)
		if err != nil {
			return lack, err
		}
		if found == nil {
			lack.Layers = append(lack.Layers, digest)
		}
	}
	return lack, nil
}

// stacked counts the layers, from the lowest on, that containerd has as stacked snapshots.
func (s *Store) stacked(ctx context.Context, image engine.Image) (int, error) {
	for i, chain := range imagestore.Chains(image.Layers) {
		if is, err := HasSnapshot(ctx, s.snapshots, image.Namespace, chain); !is || err != nil {
			return i, err
		}
	}
	return len(image.Layers), nil
}

// HasSnapshot reports whether a namespace has a snapshot, even if the namespace does not exist.
func HasSnapshot(ctx context.Context, client snapshots.SnapshotsClient, namespace, key string) (bool, error) {
	_, err := client.Stat(Within(ctx, namespace),
		&snapshots.StatSnapshotRequest{Snapshotter: snapshotter, Key: key})
	if err != nil && !missing(err) {
		return false, fmt.Errorf("ask containerd for snapshot %s: %w", key, err)
	}
	return err == nil, nil
}

// LayerBytes returns the size of a layer's archive that is here. A compressed layer is read for that, once.
func (s *Store) LayerBytes(diffID string) (int64, error) {
	if known, is := s.measured.Load(diffID); is {
		size, _ := known.(measure) // what is stored is
		return size.bytes, size.err
	}
	kept, err := s.keeps(diffID)
	if err != nil || kept.digest == diffID {
		return kept.bytes, err
	}
	size, err, _ := s.measuring.Do(diffID, func() (any, error) {
		size, err := s.measure(diffID, kept)
		if err == nil || errors.Is(err, imagestore.ErrInvalid) {
			s.measured.Store(diffID, measure{size, err})
		}
		return size, err
	})
	bytes, _ := size.(int64) // said
	return bytes, err
}

// measure is the result of reading a compressed layer.
type measure struct {
	bytes int64
	err   error
}

// measure reads a compressed layer.
func (s *Store) measure(diffID string, kept blob) (int64, error) {
	archive, err := s.OpenLayer(diffID)
	if err != nil {
		return 0, err
	}
	defer archive.Close()
	most := s.mostOf(kept.bytes)
	bytes, err := io.Copy(io.Discard, io.LimitReader(archive, most+1))
	if err == nil && bytes > most {
		err = fmt.Errorf("%w: %d bytes become more than %d", imagestore.ErrInvalid, kept.bytes, most)
	}
	if err != nil {
		return 0, fmt.Errorf("layer %s of containerd: %w", diffID, err)
	}
	return bytes, nil
}

// keeps finds the archive of a layer. Error: engine.ErrNoLayer.
func (s *Store) keeps(diffID string) (blob, error) {
	if err := s.config.Away(); err != nil {
		return blob{}, err
	}
	unknown := fmt.Errorf("layer %.80q of containerd: %w", diffID, engine.ErrNoLayer)
	if imagestore.CheckDigest(diffID) != nil {
		return blob{}, unknown
	}
	ctx, cancel := asking(context.Background())
	defer cancel()
	found, err := s.layer(ctx, diffID)
	if err == nil && found == nil {
		err = unknown
	}
	if err != nil {
		return blob{}, patience.Explain(ctx, err)
	}
	return *found, nil
}

// OpenLayer opens the archive of a layer, or its stored form in containerd, by that digest. Reading fails
// at the end unless the content matches the digest.
func (s *Store) OpenLayer(diffID string) (io.ReadCloser, error) {
	kept, err := s.keeps(diffID)
	if err != nil {
		return nil, err
	}
	in, err := s.open(context.Background(), kept)
	if err != nil {
		return nil, err
	}
	archive := imagestore.Verified(in, diffID)
	if kept.digest != diffID {
		if archive, err = imagestore.OpenVerified(in, diffID); err != nil {
			return nil, errors.Join(fmt.Errorf("layer %s of containerd: %w", diffID, err), in.Close())
		}
	}
	return struct {
		io.Reader
		io.Closer
	}{archive, in}, nil
}

// Sync flushes containerd's files to disk.
func (s *Store) Sync(ctx context.Context) error {
	roots, err := s.roots(ctx)
	for _, root := range roots {
		err = errors.Join(err, files.Sync(root))
	}
	return err
}

// roots returns the directories of content and of snapshots.
func (s *Store) roots(ctx context.Context) (roots []string, err error) {
	reply, err := s.plugins.Plugins(ctx, &introspection.PluginsRequest{
		Filters: []string{"type==io.containerd.content.v1,id==content",
			"type==io.containerd.snapshotter.v1,id==" + snapshotter},
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
