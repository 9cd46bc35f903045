package contentstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/godwit/godwit/internal/engine"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// packedImage returns an image of one compressed layer, behind an index, and the stored form of its layer.
func packedImage(t *testing.T) (image engine.Image, blob []byte) {
	t.Helper()
	layer := []byte("layer")
	blob = zipped(t, layer)
	config, err := json.Marshal(map[string]any{"rootfs": map[string]any{"type": "layers",
		"diff_ids": []string{digestOf(layer)}}})
	if err != nil {
		t.Fatal(err)
	}
	described := func(kind mediatypes.MediaType, data []byte) v1.Descriptor {
		hash, err := v1.NewHash(digestOf(data))
		if err != nil {
			t.Fatal(err)
		}
		return v1.Descriptor{MediaType: kind, Digest: hash, Size: int64(len(data))}
	}
	marshal := func(value any) []byte {
		raw, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	manifest := marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: mediatypes.OCIManifestSchema1,
		Config: described(mediatypes.OCIConfigJSON, config),
		Layers: []v1.Descriptor{described(mediatypes.OCILayer, blob)},
	})
	index := marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{
		described(mediatypes.OCIManifestSchema1, []byte("of another platform")),
		described(mediatypes.OCIManifestSchema1, manifest),
	}})
	return engine.Image{
		ID: digestOf(config), Config: config, Layers: []string{digestOf(layer)}, Namespace: "own",
		Manifests: [][]byte{index, manifest}, Blobs: []string{digestOf(blob)},
	}, blob
}

// TestDocuments: documents that lead to an image are kept unchanged, and others are refused.
func TestDocuments(t *testing.T) {
	image, blob := packedImage(t)
	d, err := parseDocuments(image)
	if err != nil || len(d.digests()) != 1 || d.digests()[0] != digestOf(blob) || d.places[0] != 1 ||
		d.kinds[0] != mediatypes.OCIImageIndex {
		t.Fatalf("%+v, %v", d, err)
	}
	index, manifest := image.Manifests[0], image.Manifests[1]
	edit := func(raw []byte, old, with string) []byte {
		return bytes.ReplaceAll(raw, []byte(old),
			[]byte(with))
	}
	for what, documents := range map[string][][]byte{
		"no manifest":           {index},
		"another's index":       {edit(index, digestOf(manifest), digestOf(nil)), manifest},
		"a manifest as index":   {manifest, manifest},
		"another configuration": {edit(manifest, image.ID, digestOf(nil))},
		"more layers": {edit(manifest, `"layers":[`,
			`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","size":1,"digest":"`+
				digestOf(nil)+`"},`)},
		"a layer of another kind": {edit(manifest, string(mediatypes.OCILayer), "text/plain")},
		"a layer from elsewhere": {edit(manifest, string(mediatypes.OCILayer),
			string(mediatypes.DockerForeignLayer))},
		"no digest":                 {edit(manifest, digestOf(blob), "sha512:00")},
		"no JSON":                   {[]byte("x")},
		"too many above each other": {index, index, index, index, manifest},
		"too large":                 {append(manifest, bytes.Repeat([]byte(" "), maxManifest)...)},
	} {
		image.Manifests = documents
		if _, err := parseDocuments(image); !errors.Is(err, imagestore.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestWhole: if an image needs all archives, the missing ones are listed, as stored at the source, or as
// archives if that is not known.
func TestWhole(t *testing.T) {
	image, blob := packedImage(t)
	plain := strings.NewReplacer(digestOf(blob), image.Layers[0], string(mediatypes.OCILayer),
		string(mediatypes.OCIUncompressedLayer))
	plainDocuments := [][]byte{[]byte(plain.Replace(string(image.Manifests[1])))}
	for what, c := range map[string]struct {
		here      map[string][]byte
		labels    map[string]string
		manifests [][]byte
		lacks     string
	}{
		"nothing":    {nil, nil, image.Manifests, digestOf(blob)},
		"it is here": {map[string][]byte{digestOf(blob): blob}, nil, image.Manifests, ""},
		"compressed in another way": {nil, map[string]string{digestOf([]byte("other")): image.Layers[0]},
			image.Manifests, digestOf(blob)},
		"nobody says how it is kept": {nil, nil, nil, image.Layers[0]},
		"it is here, however it is":  {nil, map[string]string{digestOf(blob): image.Layers[0]}, nil, ""},
		"kept as an archive there": {map[string][]byte{digestOf(blob): blob},
			map[string]string{digestOf(blob): image.Layers[0]}, plainDocuments, image.Layers[0]},
		"what it is called leads off": {nil, nil, [][]byte{[]byte("{}")}, "invalid"},
	} {
		s := storeOf(t, &fake{names: []string{"own"}, blobs: c.here, labels: c.labels})
		s.config.Whole = true
		asked := image
		asked.Manifests = c.manifests
		lack, err := s.Lacks(t.Context(), asked)
		if c.lacks == "invalid" {
			if !errors.Is(err, imagestore.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		if err != nil || !lack.Image || strings.Join(lack.Layers, " ") != c.lacks {
			t.Errorf("%s: %+v, %v; want %q", what, lack, err, c.lacks)
		}
	}
}

// TestBlob: the stored form of a layer is found by its own digest, and an image lists it.
func TestBlob(t *testing.T) {
	image, blob := packedImage(t)
	f := &fake{names: []string{"own"}, blobs: map[string][]byte{digestOf(blob): blob, image.ID: image.Config},
		targets: map[string]*types.Descriptor{}}
	for _, raw := range image.Manifests {
		f.blobs[digestOf(raw)] = raw
	}
	top := digestOf(image.Manifests[0])
	f.targets["docker.io/library/web:1"] = &types.Descriptor{MediaType: string(mediatypes.OCIImageIndex),
		Digest: top}
	s := storeOf(t, f)
	told := 0
	err := s.In(t.Context(), "own", func(target string, one engine.Image) {
		told++
		if target != top || one.ID != image.ID || len(one.Manifests) != 2 ||
			!bytes.Equal(one.Manifests[1], image.Manifests[1]) || one.Blobs[0] != digestOf(blob) {
			t.Errorf("%s: %+v", target, one)
		}
	})
	if err != nil || told != 1 {
		t.Errorf("told of %d images, %v", told, err)
	}
	if size, err := s.LayerBytes(digestOf(blob)); err != nil || size != int64(len(blob)) {
		t.Errorf("%d bytes, %v", size, err)
	}
	for _, damage := range []bool{false, true} {
		if damage {
			f.blobs[digestOf(blob)] = blob[1:]
		}
		archive, err := s.OpenLayer(digestOf(blob))
		if err != nil {
			t.Fatal(err)
		}
		read, err := io.ReadAll(archive)
		if damage != errors.Is(err, imagestore.ErrInvalid) || !damage && !bytes.Equal(read, blob) {
			t.Errorf("damaged %v: %d bytes, %v", damage, len(read), err)
		}
		archive.Close()
	}
}

// TestEndless: a compressed layer that becomes larger than any honest one is not read to its end, and only
// once.
func TestEndless(t *testing.T) {
	const most = 1 << 20
	packed := zipped(t, make([]byte, 8*most))
	layer := digestOf([]byte("endless"))
	f := &fake{
		names: []string{"own"}, blobs: map[string][]byte{digestOf(packed): packed},
		labels: map[string]string{digestOf(packed): layer},
	}
	s := storeOf(t, f)
	s.mostOf = func(int64) int64 { return most }
	for range 2 {
		if _, err := s.LayerBytes(layer); !errors.Is(err, imagestore.ErrInvalid) ||
			!strings.Contains(err.Error(), "become more") {
			t.Error(err)
		}
		f.blobs = nil
	}
}
