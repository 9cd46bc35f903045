package docker

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// TestWriteImage checks that the archive for Docker has each missing layer once, none of the present
// layers, and the manifest last.
func TestWriteImage(t *testing.T) {
	low, high := "sha256:"+strings.Repeat("aa", 32), "sha256:"+strings.Repeat("bb", 32)
	image := engine.Image{ID: "sha256:" + strings.Repeat("cc", 32), Names: []string{"web:1"},
		Config: []byte("{}"), Layers: []string{low, high, high}}
	opened := 0
	layers, err := imagestore.OpenLayers([]string{high, high}, func(string) (io.ReadCloser, int64, error) {
		opened++
		return io.NopCloser(strings.NewReader("layer")), 5, nil
	})
	must(t, err)
	if opened != 1 || layers.Bytes() != 5 {
		t.Errorf("opened %d times, %d bytes", opened, layers.Bytes())
	}
	var archive bytes.Buffer
	must(t, writeImage(&archive, image, layers))
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
	if len(manifests) != 1 || len(manifests[0].Layers) != 3 || strings.Contains(string(last), "RepoTags") {
		t.Errorf("%s", last)
	}
}

// TestLayersThatLie checks that a layer that is longer or shorter than announced makes no archive.
func TestLayersThatLie(t *testing.T) {
	for _, content := range []string{"long", "l"} {
		layers := imagestore.OpenedLayers{{DiffID: "sha256:" + strings.Repeat("aa", 32),
			Archive: io.NopCloser(strings.NewReader(content)), Bytes: 2}}
		if err := writeImage(io.Discard, engine.Image{}, layers); err == nil {
			t.Errorf("%q in place of 2 bytes", content)
		}
	}
}

func TestLoaded(t *testing.T) {
	must(t, loaded(strings.NewReader(`{"stream":"Loaded image: x\n"}`+"\n")))
	err := loaded(strings.NewReader(
		`{"stream":"x"}{"errorDetail":{"message":"no space left"},"error":"no space left"}`))
	if err == nil || err.Error() != "no space left" {
		t.Error(err)
	}
	if loaded(strings.NewReader("<html>")) == nil {
		t.Error("anything is taken for an answer")
	}
}

func TestSizeOf(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "10m": 10e6, "1.5K": 1500, "2GB": 2e9, "512": 512, "x": 0,
		"-1": 0, "100t": 0} {
		if got := sizeOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// testDocker returns an adapter whose Docker has images, by the references that find them, and a function
// that returns the tags that were set.
func testDocker(t *testing.T, images map[string]string) (a *adapter, tagged func() string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	var mu sync.Mutex
	var tags []string
	server := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/info") {
				_, _ = io.WriteString(w, `{"Driver": "overlay2"}`)
				return
			}
			_, ref, _ := strings.Cut(r.URL.Path, "/images/")
			switch {
			case strings.HasSuffix(r.URL.Path, "/_ping"):
				w.Header().Set("Api-Version", "1.44")
			case r.Method == http.MethodPost && strings.HasSuffix(ref, "/tag"):
				mu.Lock()
				defer mu.Unlock()
				tags = append(tags, r.URL.Query().Get("repo")+":"+r.URL.Query().Get("tag"))
				w.WriteHeader(http.StatusCreated)
			case images[strings.TrimSuffix(ref, "/json")] != "":
				_, _ = io.WriteString(w, images[strings.TrimSuffix(ref, "/json")])
			default:
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, `{"message": "no such image"}`)
			}
		})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	a, err = newAdapter(socket)
	must(t, err)
	return a, func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(tags, " ")
	}
}

// TestNameImage checks that an arriving image gets the name by which its container was made, and never the
// name of another image.
func TestNameImage(t *testing.T) {
	layer, id := "sha256:"+strings.Repeat("aa", 32), "sha256:"+strings.Repeat("cc", 32)
	here := `{"Id": "` + id + `", "RootFS": {"Type": "layers", "Layers": ["` + layer + `"]}}`
	for what, c := range map[string]struct{ name, taken, here, want string }{
		"free":          {"web:1", "", here, "docker.io/library/web:1"},
		"taken":         {"web:1", "web:1", here, ""},
		"an ID":         {strings.Repeat("cc", 6), "", here, ""},
		"a digest":      {"web@" + layer, "", here, ""},
		"no name":       {"../containers/x", "", here, ""},
		"other layers":  {"web:1", "", strings.Replace(here, layer, id, 1), ""},
		"another image": {"web:1", "", strings.Replace(here, id, layer, 1), ""},
		"no image":      {"web:1", "", "", ""},
	} {
		images := map[string]string{id: c.here}
		if c.taken != "" {
			images[c.taken] = `{"Id": "` + layer + `"}`
		}
		a, tagged := testDocker(t, images)
		_, err := a.imageHere(t.Context(),
			engine.Definition{Image: c.name, ImageID: id, Layers: []string{layer}}, extra{})
		must(t, err)
		if got := tagged(); got != c.want {
			t.Errorf("%s: tagged %q, want %q", what, got, c.want)
		}
	}
}
