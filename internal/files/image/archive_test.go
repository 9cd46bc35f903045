package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// file is an entry of an archive.
type file struct {
	tar.Header
	content string
}

func regular(name, content string) file {
	return file{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))},
		content}
}

func dir(name string) file {
	return file{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func link(kind byte, name, target string) file {
	return file{Header: tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}}
}

// pack makes a tar archive.
func pack(t testing.TB, entries ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t testing.TB, raw []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t testing.TB, raw []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(raw, nil)
}

// config makes the configuration of an image with these layers.
func config(t testing.TB, layers ...[]byte) []byte {
	t.Helper()
	file := v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"}}
	file.Config.Entrypoint = []string{"/bin/sh"}
	file.Config.Cmd = []string{"-c", "true"}
	file.Config.Env = []string{"A=b"}
	file.Config.WorkingDir = "/work"
	file.Config.ExposedPorts = map[string]struct{}{"80/tcp": {}}
	for _, layer := range layers {
		file.RootFS.DiffIDs = append(file.RootFS.DiffIDs, hashOf(t, layer))
	}
	return encode(t, file)
}

func hashOf(t testing.TB, raw []byte) v1.Hash {
	t.Helper()
	h, err := v1.NewHash(digestOf(raw))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func encode(t testing.TB, value any) []byte {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// dockerArchive is the output of docker save for one image.
func dockerArchive(t testing.TB, tag string, layers ...[]byte) []byte {
	t.Helper()
	manifest := dockerManifest{Config: "config.json", RepoTags: []string{tag}}
	entries := []file{regular("config.json", string(config(t, layers...)))}
	for i, layer := range layers {
		name := strings.Repeat("l", i+1) + "/layer.tar"
		manifest.Layers = append(manifest.Layers, name)
		entries = append(entries, regular(name, string(layer)))
	}
	return pack(t,
		append(entries, regular("manifest.json", string(encode(t, []dockerManifest{manifest}))))...)
}

// layout collects the files of an OCI image layout.
type layout map[string][]byte

func (l layout) blob(t testing.TB, raw []byte, kind types.MediaType) v1.Descriptor {
	t.Helper()
	digest := hashOf(t, raw)
	l["blobs/sha256/"+digest.Hex] = raw
	return v1.Descriptor{MediaType: kind, Size: int64(len(raw)), Digest: digest}
}

// image adds an image whose layers are compressed in every way, and returns its manifest's descriptor.
func (l layout) image(t testing.TB, layers ...[]byte) v1.Descriptor {
	t.Helper()
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	manifest.Config = l.blob(t, config(t, layers...), types.OCIConfigJSON)
	for i, layer := range layers {
		switch i % 3 {
		case 0:
			manifest.Layers = append(manifest.Layers, l.blob(t, gzipped(t, layer), types.OCILayer))
		case 1:
			manifest.Layers = append(manifest.Layers, l.blob(t, zstandard(t, layer), types.OCILayerZStd))
		default:
			manifest.Layers = append(manifest.Layers, l.blob(t, layer, types.OCIUncompressedLayer))
		}
	}
	return l.blob(t, encode(t, manifest), types.OCIManifestSchema1)
}

func (l layout) index(t testing.TB, manifests ...v1.Descriptor) {
	t.Helper()
	l["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	l["index.json"] = encode(t, v1.IndexManifest{SchemaVersion: 2, Manifests: manifests})
}

func (l layout) pack(t testing.TB) []byte {
	t.Helper()
	var entries []file
	for name, content := range l {
		entries = append(entries, regular(name, string(content)))
	}
	slices.SortFunc(entries, func(a, b file) int { return strings.Compare(a.Name, b.Name) })
	return pack(t, entries...)
}

func (l layout) write(t testing.TB, dir string) {
	t.Helper()
	for name, content := range l {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// everything lists all files below a directory with their content, except locks.
func everything(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	check(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && path == root || strings.HasSuffix(path, "lock") {
			return err
		}
		content := d.Type().String()
		if d.Type().IsRegular() {
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(raw)
		}
		all[path] = content
		return nil
	}))
	return all
}

func TestHealthOf(t *testing.T) {
	for name, c := range map[string]struct {
		config v1.Config
		want   *Health
	}{
		"nothing": {v1.Config{}, nil},
		"none":    {v1.Config{Healthcheck: &v1.HealthConfig{Test: []string{"NONE"}}}, &Health{}},
		"program": {v1.Config{Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/check", "-q"}, Retries: 2,
			StartPeriod: time.Second}},
			&Health{Command: []string{"/check", "-q"}, Retries: 2, StartPeriod: time.Second}},
		"shell": {v1.Config{Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "a | b"}}},
			&Health{Command: []string{"/bin/sh", "-c", "a | b"}}},
		"own shell": {v1.Config{Shell: []string{"/bin/bash", "-ec"},
			Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "a"}}},
			&Health{Command: []string{"/bin/bash", "-ec", "a"}}},
		"odd": {v1.Config{Healthcheck: &v1.HealthConfig{Test: []string{"WHAT"}}}, &Health{}},
	} {
		if have := healthOf(c.config); !reflect.DeepEqual(have, c.want) {
			t.Errorf("%s: %+v, want %+v", name, have, c.want)
		}
	}
}
