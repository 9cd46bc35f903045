package image

import (
	"encoding/json"
	"fmt"
	"io"
	"path"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Bounds of an archive's contents.
const (
	maxManifest   = 4 << 20
	maxImages     = 64
	maxIndexDepth = 3
)

// dockerManifest is one element of the manifest.json that docker save writes.
type dockerManifest struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// dockerImages lists the images of an archive that docker save wrote.
func dockerImages(from source) ([]found, error) {
	raw, err := readSmall(from, "manifest.json", maxManifest)
	if err != nil {
		return nil, err
	}
	var manifests []dockerManifest
	if err := json.Unmarshal(raw, &manifests); err != nil {
		return nil, fmt.Errorf("%w: manifest.json: %w", ErrInvalid, err)
	}
	if n := len(manifests); n == 0 || n > maxImages {
		return nil, fmt.Errorf("%w: manifest.json lists %d images; 1 to %d are possible", ErrInvalid, n,
			maxImages)
	}
	var images []found
	for _, manifest := range manifests {
		image, err := dockerImage(from, manifest)
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	return images, nil
}

func dockerImage(from source, manifest dockerManifest) (found, error) {
	config, err := readSmall(from, manifest.Config, MaxConfig)
	if err != nil {
		return found{}, fmt.Errorf("the image's configuration: %w", err)
	}
	image := found{config: config}
	for _, tag := range manifest.RepoTags {
		name, err := canonicalName(tag)
		if err != nil {
			return found{}, fmt.Errorf("%w: manifest.json: %w", ErrInvalid, err)
		}
		image.names = append(image.names, name)
	}
	for _, layer := range manifest.Layers {
		file, size, err := from.open(layer)
		if err != nil {
			return found{}, fmt.Errorf("layer %.200q: %w", layer, missing(err))
		}
		_ = file.Close()
		image.blobs = append(image.blobs, blob{size: size, open: opener(from, layer)})
	}
	return image, nil
}

func opener(from source, name string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		file, _, err := from.open(name)
		return file, missing(err)
	}
}

// layoutImages lists the images of an OCI image layout that can run here.
func layoutImages(from source) ([]found, error) {
	raw, err := readSmall(from, "index.json", maxManifest)
	if err != nil {
		return nil, err
	}
	images, err := indexImages(from, raw, "", 0)
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("%w: it contains none for linux/%s", ErrInvalid, runtime.GOARCH)
	}
	return images, nil
}

func indexImages(from source, raw []byte, name string, depth int) ([]found, error) {
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, fmt.Errorf("%w: an image index: %w", ErrInvalid, err)
	}
	if depth > maxIndexDepth || len(index.Manifests) > maxImages {
		return nil, fmt.Errorf("%w: an image index with %d entries, %d levels deep, is too large", ErrInvalid,
			len(index.Manifests), depth)
	}
	var images []found
	for _, descriptor := range index.Manifests {
		if !forThisNode(descriptor.Platform) {
			continue
		}
		more, err := descriptorImages(from, descriptor, nameOf(descriptor, name), depth)
		if err != nil {
			return nil, err
		}
		images = append(images, more...)
	}
	return images, nil
}

// forThisNode excludes images for other platforms, and attestations, whose platform is "unknown".
func forThisNode(platform *v1.Platform) bool {
	return platform == nil || platform.Architecture == "" ||
		(platform.OS == "" || platform.OS == "linux") && platform.Architecture == runtime.GOARCH
}

// nameOf finds a name in the annotations that Docker, Podman and containerd use.
func nameOf(descriptor v1.Descriptor, inherited string) string {
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		if value := descriptor.Annotations[key]; value != "" {
			return value
		}
	}
	return inherited
}

func descriptorImages(from source, descriptor v1.Descriptor, name string, depth int) ([]found, error) {
	if !descriptor.MediaType.IsIndex() && !descriptor.MediaType.IsImage() {
		return nil, fmt.Errorf("%w: unknown media type %.100q", ErrInvalid, descriptor.MediaType)
	}
	raw, err := readBlob(from, descriptor, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("an image's manifest: %w", err)
	}
	if descriptor.MediaType.IsIndex() {
		return indexImages(from, raw, name, depth+1)
	}
	image, err := layoutImage(from, raw)
	if err != nil {
		return nil, err
	}
	// An annotation that is only a tag, as in the OCI specification, is not a name.
	if canonical, err := canonicalName(name); name != "" && err == nil {
		image.names = []string{canonical}
	}
	return []found{image}, nil
}

func layoutImage(from source, raw []byte) (found, error) {
	var manifest v1.Manifest
	if err := json.Unmarshal(raw, &manifest); err != nil {
		return found{}, fmt.Errorf("%w: an image's manifest: %w", ErrInvalid, err)
	}
	if !manifest.Config.MediaType.IsConfig() {
		return found{}, fmt.Errorf("%w: it contains something else (configuration of media type %.100q)",
			ErrInvalid, manifest.Config.MediaType)
	}
	config, err := readBlob(from, manifest.Config, MaxConfig)
	if err != nil {
		return found{}, fmt.Errorf("the image's configuration: %w", err)
	}
	image := found{config: config}
	for _, layer := range manifest.Layers {
		if err := checkLayerType(layer.MediaType); err != nil {
			return found{}, err
		}
		name, err := blobPath(layer.Digest)
		if err != nil {
			return found{}, err
		}
		file, size, err := from.open(name)
		if err != nil {
			return found{}, fmt.Errorf("layer %.80q: %w", layer.Digest, missing(err))
		}
		_ = file.Close()
		if size != layer.Size {
			return found{}, fmt.Errorf("%w: layer %s has %d bytes, its manifest says %d", ErrInvalid,
				layer.Digest, size, layer.Size)
		}
		image.blobs = append(image.blobs,
			blob{open: opener(from, name), digest: layer.Digest.String(), size: size})
	}
	return image, nil
}

// checkLayerType refuses layers that are not archives, or are encrypted. The archive itself shows its
// compression.
func checkLayerType(mediaType types.MediaType) error {
	switch mediaType {
	case types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer, types.DockerLayer,
		types.DockerUncompressedLayer,
		types.OCIRestrictedLayer, types.OCIUncompressedRestrictedLayer, types.DockerForeignLayer:
		return nil
	}
	return fmt.Errorf("%w: a layer has the unknown media type %.100q", ErrInvalid, mediaType)
}

func blobPath(digest v1.Hash) (string, error) {
	if !digestPattern.MatchString(digest.String()) {
		return "", fmt.Errorf("%w: %.80q is not a SHA-256 digest", ErrInvalid, digest)
	}
	return path.Join("blobs", digest.Algorithm, digest.Hex), nil
}

// readBlob reads a small blob and compares its size and digest.
func readBlob(from source, descriptor v1.Descriptor, limit int64) ([]byte, error) {
	name, err := blobPath(descriptor.Digest)
	if err != nil {
		return nil, err
	}
	raw, err := readSmall(from, name, limit)
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) != descriptor.Size || digestOf(raw) != descriptor.Digest.String() {
		return nil, fmt.Errorf("%w: %s does not have the announced size and digest", ErrInvalid, name)
	}
	return raw, nil
}
