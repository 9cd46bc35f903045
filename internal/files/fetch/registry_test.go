package fetch

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/godwit/godwit/internal/files/image"
)

// TestRegistry: layers that a store has pulled come to another store from the same registry, as long as its
// answers are right.
func TestRegistry(t *testing.T) {
	broken := false // guarded by the order of operations here
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1000))
			return
		}
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	w := newWorld(t, 2)
	reference, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/some/app:1",
		name.Insecure)
	check(t, err)
	check(t, remote.Write(reference, w.image()))
	pulled, err := image.Open(t.TempDir())
	check(t, err)
	app, err := pulled.Pull(context.Background(), reference.String(), image.PullOptions{PlainHTTP: true}, nil)
	check(t, err)
	origin, err := pulled.Origin(app.ID)
	check(t, err)

	from := &holder{Holder: Registry(origin, 1e9)}
	f, err := w.fetch(long, from)
	check(t, err)
	w.whole()
	if taken := f.Taken(); len(taken) != 1 || taken[0].Kind != KindRegistry || taken[0].Layers != 2 {
		t.Errorf("%+v", taken)
	}

	broken = true
	w.dir = t.TempDir()
	w.open()
	f, err = w.fetch(long, from, w.holder("good", 1, w.layers, nil))
	check(t, err)
	w.whole()
	if taken := f.Taken(); len(taken) != 2 || taken[0].Failed == nil || taken[1].Layers != 2 {
		t.Errorf("%+v", taken)
	}
}

// image makes one of the layers.
func (w *world) image() v1.Image {
	w.Helper()
	made, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux"})
	check(w.T, err)
	for _, layer := range w.layers {
		one, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(w.raw[layer.DiffID])), nil
		})
		check(w.T, err)
		made, err = mutate.AppendLayers(made, one)
		check(w.T, err)
	}
	return made
}
