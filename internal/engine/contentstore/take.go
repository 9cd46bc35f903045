package contentstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	diff "github.com/containerd/containerd/api/services/diff/v1"
	images "github.com/containerd/containerd/api/services/images/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// Labels by which containerd knows what to keep (docs/garbage-collection.md there).
const (
	refSnapshot = "containerd.io/gc.ref.snapshot." + snapshotter
	refContent  = "containerd.io/gc.ref.content."
	expires     = "containerd.io/gc.expire"
)

const (
	leasePrefix = "godwit-image-"
	// leaseFor is how long the leftovers of an agent that does not come back stay at most.
	leaseFor = 24 * time.Hour
)

// Take adds an image to containerd, through its API: containerd then has all of it, under its ID as name,
// or nothing new.
func (s *Store) Take(ctx context.Context, image engine.Image,
	open func(string) (io.ReadCloser, int64, error)) error {
	select { // two calls for the same image would need its space twice
	case s.taking <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait until containerd has taken another image: %w", context.Cause(ctx))
	}
	defer func() { <-s.taking }()
	if err := s.take(ctx, image, open); err != nil {
		return fmt.Errorf("have containerd take image %s: %w", image.ID, err)
	}
	return nil
}

func (s *Store) take(ctx context.Context, image engine.Image, open imagestore.Opener) error {
	lack, err := s.Lacks(ctx, image)
	if err != nil || !lack.Image {
		return err
	}
	made, err := MakeNamespace(ctx, s.namespaces, image.Namespace)
	if err != nil {
		return err
	}
	err = s.takeLeased(ctx, image, lack, open)
	if err != nil && made {
		cleanup, cancel := asking(context.WithoutCancel(ctx))
		defer cancel()
		// unless another program has put something there by now
		_, _ = s.namespaces.Delete(Within(cleanup, image.Namespace),
			&namespaces.DeleteNamespaceRequest{Name: image.Namespace})
	}
	return err
}

// MakeNamespace makes a namespace, and reports whether it did. containerd 1.6 expects the call within that
// namespace.
func MakeNamespace(ctx context.Context, client namespaces.NamespacesClient, name string) (made bool,
	err error) {
	_, err = client.Create(Within(ctx, name),
		&namespaces.CreateNamespaceRequest{Namespace: &namespaces.Namespace{Name: name}})
	if status.Code(err) == codes.AlreadyExists {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("namespace %s: %w", name, err)
	}
	return true, nil
}

// takeLeased adds an image under a lease, which makes containerd keep content that nothing refers to yet,
// and otherwise removes.
func (s *Store) takeLeased(ctx context.Context, image engine.Image, lack engine.Lack,
	open imagestore.Opener) (err error) {
	lease := leasePrefix + strings.ToLower(rand.Text())
	ctx = Within(ctx, image.Namespace)
	_, err = s.leases.Create(ctx, &leases.CreateRequest{ID: lease,
		Labels: map[string]string{expires: time.Now().Add(leaseFor).Format(time.RFC3339)}})
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), leasePatience)
		defer cancel()
		if _, failed := s.leases.Delete(cleanup,
			&leases.DeleteRequest{ID: lease, Sync: true}); failed != nil && !missing(failed) {
			err = errors.Join(err, fmt.Errorf("end the lease: %w", failed))
		}
	}()
	t := &taken{Store: s, ctx: metadata.AppendToOutgoingContext(ctx, "containerd-lease", lease), image: image}
	return t.take(lack, open)
}

// leasePatience bounds how long containerd may take to remove unreferenced content.
const leasePatience = time.Minute

// taken is an image that is being added to containerd.
type taken struct {
	*Store
	ctx   context.Context //nolint:containedctx // it says in which namespace, and with which lease
	image engine.Image
	// documents are the image's documents at the source; nil: it gets new ones here.
	documents *documents
}

func (t *taken) take(lack engine.Lack, open imagestore.Opener) error {
	if len(t.image.Manifests) > 0 && t.config.Whole {
		var err error
		if t.documents, err = parseDocuments(t.image); err != nil {
			return err
		}
	}
	wanted, err := t.unknown(lack.Layers)
	if err != nil {
		return err
	}
	coming, err := imagestore.OpenLayers(wanted, open)
	if err != nil {
		return err
	}
	defer coming.Close()
	roots, err := t.roots(t.ctx)
	if err != nil {
		return err
	}
	for _, root := range roots { // as received, and unpacked
		if err := files.CheckSpace(root, coming.Bytes()+coming.Unpacked()); err != nil {
			return err
		}
	}
	blobs, err := t.keep(coming)
	if err != nil {
		return err
	}
	chains := imagestore.Chains(t.image.Layers)
	here, err := t.stacked(t.ctx, t.image)
	if err != nil {
		return err
	}
	for i := here; i < len(chains); i++ {
		if err := t.unpack(blobs[i], t.image.Layers[i], chains[i], chains[:i]); err != nil {
			return fmt.Errorf("layer %s: %w", t.image.Layers[i], err)
		}
	}
	return t.record(blobs, chains[len(chains)-1])
}

// unknown returns the digests of those layers that no namespace has.
func (t *taken) unknown(diffIDs []string) (wanted []string, err error) {
	for _, diffID := range diffIDs {
		found, err := t.kept(t.ctx, t.image, diffID)
		if err != nil {
			return nil, err
		}
		if found == nil {
			wanted = append(wanted, diffID)
		}
	}
	return wanted, nil
}

// keep adds the archives of all layers to the namespace. For a layer that is unpacked, and whose archive
// containerd has removed, it describes the archive, unless the image needs it.
func (t *taken) keep(coming imagestore.OpenedLayers) (blobs []*types.Descriptor, err error) {
	for i := range t.image.Layers {
		find := t.find
		if t.documents != nil {
			find = t.findBlob
		}
		d, open, err := find(i, coming)
		if err == nil && open == nil && t.config.Whole {
			err = fmt.Errorf("%s: %w", d.GetDigest(), engine.ErrNoLayer)
		}
		if err == nil && open != nil {
			err = t.put(t.ctx, d, nil, open) // not yet known whether it is that layer
		}
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, d)
	}
	return blobs, nil
}

// opened opens a layer that has just come.
func opened(coming imagestore.OpenedLayers, digest string) (open func() (io.ReadCloser, error), bytes int64) {
	i := slices.IndexFunc(coming, func(one imagestore.Opened) bool { return one.DiffID == digest })
	if i < 0 {
		return nil, 0
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(coming[i].Archive), nil }, coming[i].Bytes
}

// findBlob finds the stored form of a layer at the source: it has just come, or is here in any namespace.
func (t *taken) findBlob(i int, coming imagestore.OpenedLayers) (*types.Descriptor,
	func() (io.ReadCloser, error), error) {
	layer := t.documents.manifest.Layers[i]
	d := &types.Descriptor{MediaType: string(layer.MediaType), Digest: layer.Digest.String(),
		Size: layer.Size}
	if open, _ := opened(coming, d.Digest); open != nil {
		return d, open, nil
	}
	kept, err := t.kept(t.ctx, t.image, d.Digest)
	if err != nil || kept == nil {
		return d, nil, err
	}
	return d, func() (io.ReadCloser, error) { return t.open(t.ctx, *kept) }, nil
}

// find finds the archive of a layer: it has just come, or is here in any namespace. open is nil if it is
// nowhere.
func (t *taken) find(i int, coming imagestore.OpenedLayers) (d *types.Descriptor,
	open func() (io.ReadCloser, error), err error) {
	diffID := t.image.Layers[i]
	d = &types.Descriptor{MediaType: string(mediatypes.OCIUncompressedLayer), Digest: diffID}
	if open, d.Size = opened(coming, diffID); open != nil {
		return d, open, nil
	}
	kept, err := t.layer(t.ctx, diffID)
	if err != nil || kept == nil {
		return d, nil, err
	}
	d, err = t.describe(*kept)
	return d, func() (io.ReadCloser, error) { return t.open(t.ctx, *kept) }, err
}

// describe returns the descriptor of a layer's archive, from its beginning.
func (t *taken) describe(kept blob) (*types.Descriptor, error) {
	in, err := t.open(t.ctx, kept)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	begin := make([]byte, 4)
	n, err := io.ReadFull(in, begin)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	d := &types.Descriptor{MediaType: string(mediatypes.OCIUncompressedLayer), Digest: kept.digest,
		Size: kept.bytes}
	switch imagestore.Compression(begin[:n]) {
	case "gzip":
		d.MediaType = string(mediatypes.OCILayer)
	case "zstd":
		d.MediaType = string(mediatypes.OCILayerZStd)
	}
	return d, nil
}

// unpack makes the snapshot of a layer on top of those below it.
func (t *taken) unpack(d *types.Descriptor, diffID, chain string, below []string) (err error) {
	parent := ""
	if len(below) > 0 {
		parent = below[len(below)-1]
	}
	key := leasePrefix + strings.ToLower(rand.Text())
	prepared, err := t.snapshots.Prepare(t.ctx,
		&snapshots.PrepareSnapshotRequest{Snapshotter: snapshotter, Key: key, Parent: parent})
	if err != nil {
		return err
	}
	applied, err := t.diff.Apply(t.ctx, &diff.ApplyRequest{Diff: d, Mounts: prepared.GetMounts()})
	if got := applied.GetApplied().GetDigest(); err == nil && got != diffID {
		err = fmt.Errorf("its content has digest %.80q", got)
	}
	if err == nil {
		err = t.label(t.ctx, d.GetDigest(), map[string]string{uncompressedLabel: diffID})
	}
	if err == nil {
		_, err = t.snapshots.Commit(t.ctx,
			&snapshots.CommitSnapshotRequest{Snapshotter: snapshotter, Name: chain, Key: key})
	}
	if err == nil {
		return nil
	}
	there := status.Code(err) == codes.AlreadyExists // another program has unpacked it meanwhile
	cleanup, cancel := asking(context.WithoutCancel(t.ctx))
	defer cancel()
	// otherwise it goes with the lease
	_, _ = t.snapshots.Remove(cleanup, &snapshots.RemoveSnapshotRequest{Snapshotter: snapshotter, Key: key})
	if there {
		return nil
	}
	return err
}

// record makes an image of the stored content. It gets no name that an operator might use.
func (t *taken) record(blobs []*types.Descriptor, chain string) error {
	config := &types.Descriptor{MediaType: string(mediatypes.OCIConfigJSON), Digest: t.image.ID,
		Size: int64(len(t.image.Config))}
	d := t.documents
	if d == nil {
		raw, err := manifestOf(config, blobs)
		if err != nil {
			return err
		}
		d = &documents{raw: [][]byte{raw}, kinds: []mediatypes.MediaType{mediatypes.OCIManifestSchema1}}
	}
	if err := t.put(t.ctx, config, map[string]string{refSnapshot: chain},
		opener(t.image.Config)); err != nil {
		return err
	}
	labels := map[string]string{refContent + "config": config.GetDigest()}
	for i, blob := range blobs {
		labels[fmt.Sprintf("%sl.%d", refContent, i)] = blob.GetDigest()
	}
	for i := len(d.raw) - 1; i >= 0; i-- {
		if err := t.put(t.ctx, d.descriptor(i), labels, opener(d.raw[i])); err != nil {
			return err
		}
		if i > 0 { // as containerd does, which counts these labels
			labels = map[string]string{fmt.Sprintf("%sm.%d", refContent, d.places[i-1]): digestOf(d.raw[i])}
		}
	}
	target := d.descriptor(0)
	named := &images.Image{Name: t.config.Name(t.image.ID, target.GetDigest()), Target: target}
	_, err := t.images.Create(t.ctx, &images.CreateImageRequest{Image: named})
	if status.Code(err) == codes.AlreadyExists {
		_, err = t.images.Update(t.ctx, &images.UpdateImageRequest{Image: named})
	}
	return err
}

// manifestOf returns a manifest of the layers as stored here.
func manifestOf(config *types.Descriptor, blobs []*types.Descriptor) ([]byte, error) {
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: mediatypes.OCIManifestSchema1}
	var err error
	if manifest.Config, err = described(config); err != nil {
		return nil, err
	}
	for _, d := range blobs {
		one, err := described(d)
		if err != nil {
			return nil, err
		}
		manifest.Layers = append(manifest.Layers, one)
	}
	return json.Marshal(manifest)
}

func opener(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

func described(d *types.Descriptor) (v1.Descriptor, error) {
	digest, err := v1.NewHash(d.GetDigest())
	return v1.Descriptor{MediaType: mediatypes.MediaType(d.GetMediaType()), Size: d.GetSize(),
		Digest: digest}, err
}

// Name gives an image that has come with a container the name from which the container was made, in place
// of its ID, unless another image here has the name: another node can neither take a name away, nor give it
// to an image that is not the container's.
func (s *Store) Name(ctx context.Context, d engine.Definition) {
	if !imagestore.IsTagged(d.Image) || d.ImageID == "" {
		return
	}
	inside := Within(ctx, d.Namespace)
	came, err := s.images.Get(inside, &images.GetImageRequest{Name: d.ImageID})
	if err != nil {
		return
	}
	target := came.GetImage().GetTarget()
	all, err := s.platformImages(ctx, d.Namespace, target, nil)
	same := func(one engine.Image) bool { return one.ID == d.ImageID && slices.Equal(one.Layers, d.Layers) }
	if err != nil || !slices.ContainsFunc(all, same) {
		return
	}
	_, err = s.images.Create(inside,
		&images.CreateImageRequest{Image: &images.Image{Name: d.Image, Target: target}})
	if err == nil && !s.runs(inside, d.ImageID) {
		// otherwise the image has two names
		_, _ = s.images.Delete(inside, &images.DeleteImageRequest{Name: d.ImageID})
	}
}

// runs reports whether a container of a namespace was made from an image of this name, by which the image
// is found when that container leaves.
func (s *Store) runs(ctx context.Context, name string) bool {
	listed, err := s.containers.List(ctx,
		&containers.ListContainersRequest{Filters: []string{fmt.Sprintf("image==%q", name)}})
	return err != nil || len(listed.GetContainers()) > 0
}

// Sweep ends the leases of images that a killed agent did not finish: those made before a given time.
func (s *Store) Sweep(ctx context.Context, before time.Time) error {
	if s.config.Away() != nil {
		return nil
	}
	spaces, err := s.spaces(ctx)
	if status.Code(errors.Unwrap(err)) == codes.Unavailable { // containerd does not run
		return nil
	}
	for _, namespace := range spaces {
		if s.config.Check(namespace) != nil {
			continue
		}
		inside := Within(ctx, namespace)
		listed, failed := s.leases.List(inside, &leases.ListRequest{})
		err = errors.Join(err, failed)
		for _, lease := range listed.GetLeases() {
			if !strings.HasPrefix(lease.GetID(), leasePrefix) ||
				!lease.GetCreatedAt().AsTime().Before(before) {
				continue
			}
			if _, failed := s.leases.Delete(inside,
				&leases.DeleteRequest{ID: lease.GetID()}); !missing(failed) {
				err = errors.Join(err, failed)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("images that were to come to containerd: %w", err)
	}
	return nil
}
