package contentstore

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/godwit/godwit/internal/engine"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// documents lead from the target of an image's name to its configuration and its layers: a manifest, below
// any number of indexes.
type documents struct {
	raw      [][]byte // topmost first
	kinds    []mediatypes.MediaType
	places   []int // of the next document, in each index
	manifest v1.Manifest
}

// parseDocuments checks that another node's documents of an image lead to its configuration.
func parseDocuments(image engine.Image) (*documents, error) {
	d := &documents{raw: image.Manifests}
	if len(d.raw) > maxIndexDepth+1 {
		return nil, fmt.Errorf("%w: %d indexes above each other", imagestore.ErrInvalid, len(d.raw)-1)
	}
	for i, raw := range d.raw {
		if len(raw) > maxManifest {
			return nil, fmt.Errorf("%w: a manifest of %d bytes", imagestore.ErrInvalid, len(raw))
		}
		last := i == len(d.raw)-1
		kind, err := kindOf(raw, last)
		if err != nil {
			return nil, err
		}
		d.kinds = append(d.kinds, kind)
		if !last {
			err = d.findNext(raw, digestOf(d.raw[i+1]))
		} else if err = json.Unmarshal(raw, &d.manifest); err == nil {
			err = d.check(image)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: manifest %s: %w", imagestore.ErrInvalid, digestOf(raw), err)
		}
	}
	return d, nil
}

// kindOf returns a document's own media type. A document of the OCI need not have one.
func kindOf(raw []byte, manifest bool) (mediatypes.MediaType, error) {
	var said struct {
		MediaType mediatypes.MediaType `json:"mediaType"`
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return "", fmt.Errorf("%w: a manifest: %w", imagestore.ErrInvalid, err)
	}
	switch {
	case said.MediaType == "" && manifest:
		return mediatypes.OCIManifestSchema1, nil
	case said.MediaType == "":
		return mediatypes.OCIImageIndex, nil
	case manifest && said.MediaType.IsImage(), !manifest && said.MediaType.IsIndex():
		return said.MediaType, nil
	}
	return "", fmt.Errorf("%w: a manifest of type %.80q", imagestore.ErrInvalid, said.MediaType)
}

func (d *documents) findNext(index []byte, digest string) error {
	var parsed v1.IndexManifest
	if err := json.Unmarshal(index, &parsed); err != nil {
		return err
	}
	for i, one := range parsed.Manifests {
		if one.Digest.String() == digest {
			d.places = append(d.places, i)
			return nil
		}
	}
	return fmt.Errorf("%s is not in it", digest)
}

func (d *documents) check(image engine.Image) error {
	if got := d.manifest.Config.Digest.String(); got != image.ID {
		return fmt.Errorf("it is of configuration %.80q", got)
	}
	if len(d.manifest.Layers) != len(image.Layers) {
		return fmt.Errorf("it has %d layers, and its image %d", len(d.manifest.Layers), len(image.Layers))
	}
	for _, layer := range d.manifest.Layers {
		if err := imagestore.CheckDigest(layer.Digest.String()); err != nil {
			return err
		}
		if layer.Size <= 0 || !layer.MediaType.IsLayer() || !layer.MediaType.IsDistributable() {
			return errors.New("it has a layer of another kind")
		}
	}
	return nil
}

// digests returns the digests of the layers as stored, lowest first.
func (d *documents) digests() (all []string) {
	for _, layer := range d.manifest.Layers {
		all = append(all, layer.Digest.String())
	}
	return all
}

func (d *documents) descriptor(i int) *types.Descriptor {
	return &types.Descriptor{MediaType: string(d.kinds[i]), Digest: digestOf(d.raw[i]),
		Size: int64(len(d.raw[i]))}
}
