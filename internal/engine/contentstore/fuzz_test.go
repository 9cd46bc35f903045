package contentstore

import (
	"encoding/json"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// FuzzDocuments: another node's documents of an image are refused, or lead to its configuration and all its
// layers.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2}`), []byte(nil), "sha256:aa", []byte(`["sha256:bb"]`))
	manifest := []byte(`{"schemaVersion":2,"config":{"digest":"sha256:` + zeros +
		`","size":2},"layers":[{"mediaType":` +
		`"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:` + zeros + `","size":3}]}`)
	f.Add(manifest, []byte(nil), "sha256:"+zeros, []byte(`["sha256:`+zeros+`"]`))
	index := []byte(`{"schemaVersion":2,"manifests":[{"digest":"` + digestOf(manifest) + `","size":1}]}`)
	f.Add(index, manifest, "sha256:"+zeros, []byte(`["sha256:`+zeros+`"]`))
	f.Add([]byte(`{"mediaType":"x"}`), []byte(`null`), "", []byte(`[]`))
	f.Fuzz(func(t *testing.T, upper, lower []byte, id string, layers []byte) {
		image := engine.Image{ID: id, Manifests: [][]byte{upper}}
		if len(lower) > 0 {
			image.Manifests = append(image.Manifests, lower)
		}
		if json.Unmarshal(layers, &image.Layers) != nil {
			return
		}
		found, err := parseDocuments(image)
		if err != nil {
			return
		}
		digests := found.digests()
		if len(digests) != len(image.Layers) || found.manifest.Config.Digest.String() != id {
			t.Fatalf("image %q of %d layers has %v", id, len(image.Layers), digests)
		}
		for _, digest := range digests {
			if err := imagestore.CheckDigest(digest); err != nil {
				t.Error(err)
			}
		}
		for i := range found.raw {
			found.descriptor(i)
		}
	})
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"
