package podman

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// imageStore is the images of a Podman. What there is it reads in containers/storage (images.go there):
//
//	overlay-images/images.json       the images, with their names and highest layers
//	overlay-images/ID/=NAME          what is kept of one, NAME in base64: its configuration under its digest, which is the ID
type imageStore struct {
	podman *adapter
	coming string        // directory of what Podman is to take
	taking chan struct{} // full while it takes something
	index  layerIndex
}

const imagesDir = "overlay-images"

var _ engine.Images = (*imageStore)(nil)

// storedImage is what the storage tells of an image.
type storedImage struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
	Layer string   `json:"layer"` // the highest
}

// all are the images that are there, by what they consist of.
func (s *imageStore) all() ([]engine.Image, error) {
	data, err := os.ReadFile(filepath.Join(s.podman.root, imagesDir, "images.json"))
	if errors.Is(err, os.ErrNotExist) { // it has none yet
		return nil, nil
	}
	var stored []storedImage
	if err == nil {
		err = json.Unmarshal(data, &stored)
	}
	var table layerTable
	if err == nil {
		table, err = s.index.read(s.podman.root)
	}
	if err != nil {
		return nil, fmt.Errorf("read which images Podman has: %w", err)
	}
	var all []engine.Image
	for _, one := range stored {
		if layers := table.below(one.Layer); len(layers) > 0 && idPattern.MatchString(one.ID) {
			all = append(all, engine.Image{ID: idPrefix + one.ID, Names: one.Names, Layers: layers})
		}
	}
	return all, nil
}

// idPrefix is what digests have, and IDs of Podman's images have not.
const idPrefix = "sha256:"

// Image finds an image by its ID.
func (s *imageStore) Image(_ context.Context, id string) (engine.Image, error) {
	all, err := s.all()
	if err != nil {
		return engine.Image{}, err
	}
	i := slices.IndexFunc(all, func(one engine.Image) bool { return one.ID == id })
	if i < 0 {
		return engine.Image{}, fmt.Errorf("image %.80q of Podman: %w", id, engine.ErrNoImage)
	}
	found := all[i]
	found.Names = familiar(found.Names)
	if found.Config, err = s.config(id); err != nil {
		return found, fmt.Errorf("configuration of image %s of Podman: %w", id, err)
	}
	return found, nil
}

func familiar(names []string) (short []string) {
	for _, name := range names {
		short = append(short, imagestore.FamiliarName(name))
	}
	return short
}

// config reads an image's configuration as it came.
func (s *imageStore) config(id string) ([]byte, error) {
	kept := "=" + base64.StdEncoding.EncodeToString([]byte(id))
	f, err := os.Open(filepath.Join(s.podman.root, imagesDir, strings.TrimPrefix(id, idPrefix), kept))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	config, err := io.ReadAll(io.LimitReader(f, imagestore.MaxConfig+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(config); idPrefix+hex.EncodeToString(sum[:]) != id {
		return nil, errors.New("it is damaged, or too large")
	}
	return config, nil
}

// AllImages tells of all: what is of another version of one may be much like it.
func (s *imageStore) AllImages(context.Context) ([]engine.Image, error) {
	all, err := s.all()
	for i := range all {
		all[i].Names = familiar(all[i].Names)
	}
	return all, err
}

// Lacks tells what is missing of an image: nothing if there is one with the same layers, whatever
// it is called. A layer is not missing that Podman has for another image, wherever it lies: it
// takes a copy of it by itself.
func (s *imageStore) Lacks(_ context.Context, image engine.Image) (engine.Lack, error) {
	if err := s.podman.Away(); err != nil {
		return engine.Lack{}, err
	}
	if here, err := s.here(image); here != "" || err != nil {
		return engine.Lack{}, err
	}
	table, err := s.index.read(s.podman.root)
	if err != nil {
		return engine.Lack{}, err
	}
	lack := engine.Lack{Image: true}
	for _, diffID := range image.Layers {
		if len(table.byDiffID[diffID]) == 0 {
			lack.Layers = append(lack.Layers, diffID)
		}
	}
	return lack, nil
}

// here is how Podman is told of an image that it has: by a name that the image has, so that a
// container is as it was started, or by an ID; "" if it has none with these layers.
func (s *imageStore) here(image engine.Image) (ref string, err error) {
	all, err := s.all()
	if err != nil {
		return "", err
	}
	for _, one := range all {
		if !slices.Equal(one.Layers, image.Layers) {
			continue
		}
		for _, name := range image.Names {
			if slices.Contains(one.Names, name) {
				return name, nil
			}
		}
		if one.ID == image.ID {
			ref = strings.TrimPrefix(one.ID, idPrefix)
		}
	}
	return ref, nil
}

// Sync brings Podman's storage to the disk.
func (s *imageStore) Sync(context.Context) error { return files.Sync(s.podman.root) }

// name gives the image of a container that comes the name by which the container was made, unless
// an image here has the name: nothing that another node says takes a name away. Whether it gets one
// or not, it is known by its ID.
func (s *imageStore) name(ctx context.Context, d engine.Definition) {
	all, err := s.all()
	if err != nil || !imagestore.IsTagged(d.Image) {
		return
	}
	taken := slices.ContainsFunc(all,
		func(one engine.Image) bool { return slices.Contains(one.Names, d.Image) })
	same := slices.ContainsFunc(all, func(one engine.Image) bool {
		return one.ID == d.ImageID &&
			slices.Equal(one.Layers, d.Layers)
	})
	if same && !taken {
		_, _ = podman(ctx, "tag", strings.TrimPrefix(d.ImageID, idPrefix), d.Image)
	}
}
