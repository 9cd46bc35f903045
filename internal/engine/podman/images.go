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

// imageStore has the images of a Podman. It reads them in containers/storage (images.go there):
//
//	overlay-images/images.json       the images, with their names and highest layers
//	overlay-images/ID/=NAME          data of an image, NAME in base64; for the configuration NAME is the ID
type imageStore struct {
	podman *adapter
	coming string        // directory of images that Podman is to take
	taking chan struct{} // full while Podman takes an image
	index  layerIndex
}

const imagesDir = "overlay-images"

var _ engine.Images = (*imageStore)(nil)

// storedImage is the storage's record of an image.
type storedImage struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
	Layer string   `json:"layer"` // the topmost
}

// all returns all images, by layers and configuration.
func (s *imageStore) all() ([]engine.Image, error) {
	data, err := os.ReadFile(filepath.Join(s.podman.root, imagesDir, "images.json"))
	if errors.Is(err, os.ErrNotExist) { // there is no list yet
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

// idPrefix is the prefix of digests, which IDs of Podman's images lack.
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

// config returns an image's original configuration.
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

// AllImages lists all images, because another version of an image may be similar to it.
func (s *imageStore) AllImages(context.Context) ([]engine.Image, error) {
	all, err := s.all()
	for i := range all {
		all[i].Names = familiar(all[i].Names)
	}
	return all, err
}

// Lacks reports which layers of an image are missing: none if there is an image with the same layers, by
// any name. A layer that Podman has for another image, at any height, is not missing: Podman itself copies
// it.
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

// here returns a reference to an image that Podman has: a name of the image, so that the container is as it
// was started, or its ID; "" if there is no image with these layers.
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

// Sync flushes Podman's storage to disk.
func (s *imageStore) Sync(context.Context) error { return files.Sync(s.podman.root) }

// name gives an arriving container's image the name by which the container was made, unless an image here
// has the name: no statement of another node can take a name away. With or without a name, the image is
// known by its ID.
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
