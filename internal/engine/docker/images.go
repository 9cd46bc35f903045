package docker

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// imageStore has the images of a Docker.
type imageStore struct {
	docker *adapter
	taking sync.Mutex // held while Docker loads an image
	index  layerIndex
	keeper keeper
}

var _ engine.Images = (*imageStore)(nil)

// Images returns the images of Docker's own store.

// Image finds an image by its ID, or by its configuration.
func (s *imageStore) Image(ctx context.Context, id string) (engine.Image, error) {
	if c, err := s.docker.contents(ctx); c != nil || err != nil {
		if err != nil {
			return engine.Image{}, err
		}
		_, image, err := s.docker.imageIn(ctx, c, id)
		return image, err
	}
	found, err := s.docker.api(ctx).ImageInspect(ctx, id)
	if errdefs.IsNotFound(err) {
		return engine.Image{}, fmt.Errorf("image %.80q of Docker: %w", id, engine.ErrNoImage)
	}
	if err != nil {
		return engine.Image{}, fmt.Errorf("ask Docker about image %.80q: %w", id, err)
	}
	image := engine.Image{ID: found.ID, Names: found.RepoTags, Layers: found.RootFS.Layers}
	if image.Config, err = s.imageConfig(ctx, found.ID); err != nil {
		return image, fmt.Errorf("configuration of image %s of Docker: %w", id, err)
	}
	return image, nil
}

// imageConfig returns an image's original configuration, which Docker's API does not provide.
func (s *imageStore) imageConfig(ctx context.Context, id string) ([]byte, error) {
	if !diffIDPattern.MatchString(id) {
		return nil, fmt.Errorf("%.80q is not the ID of an image", id)
	}
	root, err := s.docker.directory(ctx)
	if err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(id, "sha256:")
	f, err := os.Open(filepath.Join(root, imageDB, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	config, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(config); hex.EncodeToString(sum[:]) != name {
		return nil, errors.New("it is damaged, or too large")
	}
	return config, nil
}

// AllImages lists all images with names, because another version of an image may be similar to it.
func (s *imageStore) AllImages(ctx context.Context) ([]engine.Image, error) {
	listed, err := s.docker.api(ctx).ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the images of Docker: %w", err)
	}
	var all []engine.Image
	for _, item := range listed.Items {
		found, err := s.docker.api(ctx).ImageInspect(ctx, item.ID)
		if errdefs.IsNotFound(err) { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ask Docker about image %s: %w", item.ID, err)
		}
		all = append(all, engine.Image{ID: found.ID, Names: found.RepoTags, Layers: found.RootFS.Layers})
	}
	return all, nil
}

// Lacks reports which layers of an image are missing: none if there is an image with the same layers, by
// any name.
func (s *imageStore) Lacks(ctx context.Context, image engine.Image) (engine.Lack, error) {
	if err := s.docker.Away(); err != nil {
		return engine.Lack{}, err
	}
	if here, err := s.docker.hasImage(ctx, image); here || err != nil {
		return engine.Lack{}, err
	}
	if c, err := s.docker.contents(ctx); c != nil || err != nil {
		if err != nil {
			return engine.Lack{}, err
		}
		image.Namespace = c.namespace
		return c.images.Lacks(ctx, image)
	}
	root, err := s.docker.directory(ctx)
	if err != nil {
		return engine.Lack{}, err
	}
	return engine.Lack{Image: true, Layers: image.Layers[stacked(root, image.Layers):]}, nil
}

// hasImage reports whether there is an image with these layers, by any name.
func (a *adapter) hasImage(ctx context.Context, image engine.Image) (bool, error) {
	refs := []string{image.ID}
	if len(image.Manifests) > 0 {
		refs = append(refs, digestOf(image.Manifests[0]))
	}
	name, err := a.called(ctx, image.Layers, append(refs, imagestore.FitNames(image.Names)...)...)
	return name != "", err
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// stacked counts the layers, from the lowest, that Docker has on top of each other.
func stacked(root string, layers []string) int {
	for i, chain := range imagestore.Chains(layers) {
		if _, err := os.Stat(filepath.Join(root, layerDB, strings.TrimPrefix(chain, "sha256:"))); err != nil {
			return i
		}
	}
	return len(layers)
}

// Take makes Docker load an image (docker load). Then Docker has either all of the image, or nothing new.
func (s *imageStore) Take(ctx context.Context, image engine.Image,
	open func(string) (io.ReadCloser, int64, error)) error {
	if err := s.take(ctx, image, open); err != nil {
		return fmt.Errorf("have Docker take image %s: %w", image.ID, err)
	}
	return nil
}

func (s *imageStore) take(ctx context.Context, image engine.Image,
	open func(string) (io.ReadCloser, int64, error)) error {
	s.taking.Lock() // two loads of one image would need its room twice
	defer s.taking.Unlock()
	lack, err := s.Lacks(ctx, image)
	if err != nil || !lack.Image {
		return err
	}
	if err := s.takeOr(ctx, image, lack, open); err != nil {
		return err
	}
	image.Names = nil // another image has the name
	if lack, err = s.Lacks(ctx, image); err == nil && lack.Image {
		err = errors.New("the engine loaded a different image, or the image was removed since")
	}
	return err
}

// takeOr loads an image into Docker's containerd if that keeps images, and into Docker otherwise.
func (s *imageStore) takeOr(ctx context.Context, image engine.Image, lack engine.Lack,
	open func(string) (io.ReadCloser, int64, error)) error {
	c, err := s.docker.contents(ctx)
	if err != nil {
		return err
	}
	if c != nil {
		image.Namespace = c.namespace
		return c.images.Take(ctx, image, open)
	}
	coming, err := imagestore.OpenLayers(lack.Layers, open)
	if err != nil {
		return err
	}
	defer coming.Close()
	root, err := s.docker.directory(ctx)
	if err != nil {
		return err
	}
	if err := files.CheckSpace(root, copiesOfLoad*coming.Bytes()); err != nil {
		return err
	}
	return s.load(ctx, func(w io.Writer) error { return writeImage(w, image, coming) })
}

// Sync flushes Docker's directory to disk.
func (s *imageStore) Sync(ctx context.Context) error {
	root, err := s.docker.directory(ctx)
	if err != nil {
		return err
	}
	err = files.Sync(root)
	if c, failed := s.docker.contents(ctx); failed != nil {
		err = errors.Join(err, failed)
	} else if c != nil {
		err = errors.Join(err, c.images.Sync(ctx))
	}
	return err
}

// SweepImages removes what was made, before a time, for images that have not come. A Docker that does not
// answer has taken nothing since.
func (e *Engine) SweepImages(ctx context.Context, before time.Time) error {
	c, err := e.images.kept()
	if err != nil || c == nil {
		return nil //nolint:nilerr // said
	}
	ctx, cancel := asking(ctx)
	defer cancel()
	return c.images.Sweep(ctx, before)
}

// copiesOfLoad is the number of copies of a layer in Docker's directory during a load: as it came, and
// unpacked.
const copiesOfLoad = 2

// nameImage gives an arriving container's image the name by which the container was made, as docker run
// would have, unless an image here has the name. The image comes without a name, so that no statement of
// another node can take a name away, however long the load takes. With or without a name, the image is
// known by its ID.
func (a *adapter) nameImage(ctx context.Context, d engine.Definition, id string) {
	isID := strings.HasPrefix(strings.TrimPrefix(d.ImageID, "sha256:"),
		strings.TrimPrefix(d.Image, "sha256:"))
	if id == "" || isID || strings.Contains(d.Image, "@") || imagestore.CheckName(d.Image) != nil {
		return
	}
	if _, err := a.api(ctx).ImageInspect(ctx, d.Image); errdefs.IsNotFound(err) {
		_, _ = a.api(ctx).ImageTag(ctx, client.ImageTagOptions{Source: id, Target: d.Image})
	}
}

// load makes Docker read an archive of images.
func (s *imageStore) load(ctx context.Context, write func(io.Writer) error) error {
	in, out := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := write(out)
		out.CloseWithError(err)
		wrote <- err
	}()
	reply, err := s.docker.api(ctx).ImageLoad(ctx, in, client.ImageLoadWithQuiet(true))
	if err == nil {
		err = errors.Join(loaded(reply), reply.Close())
	}
	in.CloseWithError(errors.New("Docker stopped reading")) //nolint:staticcheck // its name
	return errors.Join(err, unless(err, <-wrote))
}

// unless returns an error unless there is another error, which has the same cause.
func unless(other, err error) error {
	if other != nil {
		return nil
	}
	return err
}

// maxReply bounds how much of Docker's answer is read.
const maxReply = 1 << 20

// loaded reads Docker's answer to a load. Docker reports a failure at the end of the answer.
func loaded(reply io.Reader) error {
	messages := json.NewDecoder(io.LimitReader(reply, maxReply))
	for {
		var message struct {
			Error string `json:"error"`
		}
		err := messages.Decode(&message)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case message.Error != "":
			return errors.New(strings.TrimSpace(message.Error))
		}
	}
}

// writeImage writes an image as docker save does, but without the layers that are already there: Docker
// does not read their archives. The manifest comes last, so a truncated archive contains no image. The
// image has no name, see nameImage.
func writeImage(w io.Writer, image engine.Image, layers imagestore.OpenedLayers) error {
	archive := tar.NewWriter(w)
	for _, layer := range layers {
		header := &tar.Header{Name: layerFile(layer.DiffID), Size: layer.Bytes, Mode: 0o600}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{archive}, struct{ io.Reader }{layer.Archive},
			make([]byte, 256<<10)); err != nil {
			return fmt.Errorf("layer %s: %w", layer.DiffID, err)
		}
	}
	config := strings.TrimPrefix(image.ID, "sha256:") + ".json"
	manifest := loadManifest{Config: config}
	for _, diffID := range image.Layers {
		manifest.Layers = append(manifest.Layers, layerFile(diffID))
	}
	described, err := json.Marshal([]loadManifest{manifest})
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{{config, image.Config}, {"manifest.json", described}} {
		if err := archive.WriteHeader(&tar.Header{Name: file.name, Size: int64(len(file.content)),
			Mode: 0o600}); err != nil {
			return err
		}
		if _, err := archive.Write(file.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// loadManifest is the description of an image in manifest.json.
type loadManifest struct {
	Config string   `json:"Config"`
	Layers []string `json:"Layers"`
}

func layerFile(diffID string) string { return strings.TrimPrefix(diffID, "sha256:") + ".tar" }
