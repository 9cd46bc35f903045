package docker

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestWriteImage: what Docker is to load has each layer once, those that it has not at all, and says last what it is.
func TestWriteImage(t *testing.T) {
	low, high := "sha256:"+strings.Repeat("aa", 32), "sha256:"+strings.Repeat("bb", 32)
	image := engine.Image{ID: "sha256:" + strings.Repeat("cc", 32), Config: []byte("{}"), Layers: []string{low, high, high}}
	opened := 0
	layers, err := openLayers([]string{high, high}, func(string) (io.ReadCloser, int64, error) {
		opened++
		return io.NopCloser(strings.NewReader("layer")), 5, nil
	})
	must(t, err)
	if opened != 1 || layers.bytes() != 5 {
		t.Errorf("opened %d times, %d bytes", opened, layers.bytes())
	}
	var archive bytes.Buffer
	must(t, writeImage(&archive, image, []string{"web:1"}, layers))
	reader := tar.NewReader(&archive)
	var names []string
	var last []byte
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		names = append(names, header.Name)
		last, err = io.ReadAll(reader)
		must(t, err)
	}
	if len(names) != 3 || names[0] != layerFile(high) || names[2] != "manifest.json" {
		t.Errorf("it has %v", names)
	}
	var manifests []loadManifest
	must(t, json.Unmarshal(last, &manifests))
	if len(manifests) != 1 || len(manifests[0].Layers) != 3 || manifests[0].RepoTags[0] != "web:1" {
		t.Errorf("%+v", manifests)
	}
}

// TestLayersThatLie: one that is longer or shorter than it was said to be makes no archive.
func TestLayersThatLie(t *testing.T) {
	for _, content := range []string{"long", "l"} {
		layers := openedLayers{{"sha256:" + strings.Repeat("aa", 32), io.NopCloser(strings.NewReader(content)), 2}}
		if err := writeImage(io.Discard, engine.Image{}, nil, layers); err == nil {
			t.Errorf("%q in place of 2 bytes", content)
		}
	}
}

func TestLoaded(t *testing.T) {
	must(t, loaded(strings.NewReader(`{"stream":"Loaded image: x\n"}`+"\n")))
	err := loaded(strings.NewReader(`{"stream":"x"}{"errorDetail":{"message":"no space left"},"error":"no space left"}`))
	if err == nil || err.Error() != "no space left" {
		t.Error(err)
	}
	if loaded(strings.NewReader("<html>")) == nil {
		t.Error("anything is taken for an answer")
	}
}

// TestFit: nothing that comes from another node and is no image's name is asked of Docker.
func TestFit(t *testing.T) {
	got := fit([]string{"nginx", "../containers/x", "localhost:5000/a/b:1", "a?b=c", "", "x@sha256:" + strings.Repeat("ab", 32), "UPPER/x"})
	if strings.Join(got, " ") != "nginx localhost:5000/a/b:1 x@sha256:"+strings.Repeat("ab", 32) {
		t.Errorf("%q", got)
	}
}

func TestSizeOf(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "10m": 10e6, "1.5K": 1500, "2GB": 2e9, "512": 512, "x": 0, "-1": 0, "100t": 0} {
		if got := sizeOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
