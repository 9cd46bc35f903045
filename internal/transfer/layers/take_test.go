package layers

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// keeping is an engine that keeps images: of the one that is asked about it has all layers but some.
type keeping struct {
	engine.Images
	lacks []engine.Lack // one after the other, the last one for good
	take  []error       // the same
	taken []string      // layers that were opened
}

func next[T any](list *[]T) T {
	first := (*list)[0]
	if len(*list) > 1 {
		*list = (*list)[1:]
	}
	return first
}

func (k *keeping) Lacks(context.Context, engine.Image) (engine.Lack, error) {
	return next(&k.lacks), nil
}
func (k *keeping) AllImages(context.Context) ([]engine.Image, error) { return nil, nil }
func (k *keeping) Sync(context.Context) error                        { return nil }
func (k *keeping) LayerBytes(string) (int64, error)                  { return 0, engine.ErrNoLayer }

func (k *keeping) Take(_ context.Context, image engine.Image,
	open func(string) (io.ReadCloser, int64, error)) error {
	for _, diffID := range image.Layers {
		archive, _, err := open(diffID)
		if err != nil {
			return err
		}
		k.taken = append(k.taken, diffID)
		archive.Close()
	}
	return next(&k.take)
}

// layerOf is the archive of a layer of one file.
func layerOf(t *testing.T, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644,
		Size: int64(len(content))})
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// engines are an engine that keeps images, "docker", and another one that does not.
type engines struct{ images *keeping }

func (e engines) Images() []engine.Images { return []engine.Images{e.images} }

func (e engines) ImagesOf(name string) (engine.Images, error) {
	switch name {
	case "docker":
		return e.images, nil
	case "embedded":
		return nil, nil
	}
	return nil, errors.New("no such engine")
}

// nodes are other nodes: none.
type nodes struct{}

func (nodes) Others() []identity.Node                        { return nil }
func (nodes) Reaches(string) bool                            { return false }
func (nodes) Link(string) (time.Duration, float64)           { return 0, 0 }
func (nodes) Client(identity.Node) (*grpc.ClientConn, error) { return nil, errUnreached }

var errUnreached = errors.New("the node cannot be reached")

// moverOf is of a node with that engine.
func moverOf(t *testing.T, k *keeping) *Mover {
	t.Helper()
	dir := t.TempDir()
	images, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	spool, err := image.OpenSpool(filepath.Join(dir, "spool"))
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{
		Images: images, Spool: spool, Engines: engines{k}, Nodes: nodes{},
		Dial: func(context.Context, identity.Node, string) (*stream.Session, error) {
			return nil,
				errUnreached
		},
		StateDir: dir, Patience: time.Second, Cores: 1, Log: slog.New(slog.DiscardHandler),
	})
}

// asked is a node with that engine, a request for an image of one layer, and the layer in the spool.
func asked(t *testing.T, k *keeping) (*Mover, *api.FetchRequest) {
	t.Helper()
	m := moverOf(t, k)
	layer := layerOf(t, "layer")
	if err := m.spool.BringLayer(t.Context(), digest(layer), bytes.NewReader(layer), 0); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{"rootfs": map[string]any{"type": "layers",
		"diff_ids": []string{digest(layer)}}})
	if err != nil {
		t.Fatal(err)
	}
	return m, &api.FetchRequest{
		Engine: "docker", Image: digest(config), ConfigJson: config,
		Layers: []*api.Layer{{DiffId: digest(layer), ArchiveBytes: int64(len(layer))}},
	}
}

func fetched(t *testing.T, m *Mover, request *api.FetchRequest) (told migration.Layers, err error) {
	t.Helper()
	err = m.Fetch(t.Context(), identity.Node{Name: "a"}, request, func(layers migration.Layers) error {
		told = layers
		return nil
	})
	return told, err
}

// TestTake: an engine gets the layers that it lacks, also when somebody removes others meanwhile,
// and nothing is left on the way. If it fails to take them, they need not come again.
func TestTake(t *testing.T) {
	layer := digest(layerOf(t, "layer"))
	all, none := engine.Lack{Image: true, Layers: []string{layer}}, engine.Lack{Image: true}
	failed := errors.New("failed")
	for what, k := range map[string]*keeping{
		"taken":               {lacks: []engine.Lack{all}, take: []error{nil}},
		"removed, then taken": {lacks: []engine.Lack{none, all}, take: []error{failed, nil}},
	} {
		m, request := asked(t, k)
		told, err := fetched(t, m, request)
		if err != nil || told.Count != 1 || m.spool.HasLayer(layer) {
			t.Errorf("%s: %+v, %v; in the spool: %v", what, told, err, m.spool.HasLayer(layer))
		}
	}
	k := &keeping{lacks: []engine.Lack{all}, take: []error{failed}}
	m, request := asked(t, k)
	if _, err := fetched(t, m, request); !errors.Is(err, failed) || len(k.taken) != 1 ||
		!m.spool.HasLayer(layer) {
		t.Errorf("failed: %v, tried %d times; in the spool: %v", err, len(k.taken), m.spool.HasLayer(layer))
	}
	k = &keeping{lacks: []engine.Lack{{}}}
	m, request = asked(t, k)
	if told, err := fetched(t, m, request); err != nil || told.Here != 1 || len(k.taken) > 0 ||
		m.spool.HasLayer(layer) {
		t.Errorf("what is there: %+v, %v; in the spool: %v", told, err, m.spool.HasLayer(layer))
	}
}

// TestTakeHostile: what is not what it says it is comes to no engine.
func TestTakeHostile(t *testing.T) {
	for what, change := range map[string]func(*api.FetchRequest){
		"no such engine": func(r *api.FetchRequest) { r.Engine = "other" },
		"engine's own":   func(r *api.FetchRequest) { r.Engine = "embedded" },
		"another config": func(r *api.FetchRequest) { r.ConfigJson = append(r.ConfigJson, ' ') },
		"no config":      func(r *api.FetchRequest) { r.ConfigJson = nil },
		"no image": func(r *api.FetchRequest) {
			r.ConfigJson, r.Image = []byte("{}"),
				digest([]byte("{}"))
		},
		"path for a layer": func(r *api.FetchRequest) { r.Layers[0].DiffId = "sha256:../../etc/passwd" },
		"size":             func(r *api.FetchRequest) { r.Layers[0].ArchiveBytes = -1 },
		"names":            func(r *api.FetchRequest) { r.Names = make([]string, maxImageNames+1) },
		"layer in config": func(r *api.FetchRequest) {
			r.ConfigJson = []byte(strings.Replace(string(r.ConfigJson), "sha256:", "sha256:../", 1))
			r.Image = digest(r.ConfigJson)
		},
	} {
		k := &keeping{lacks: []engine.Lack{{Image: true, Layers: []string{digest(layerOf(t, "layer"))}}},
			take: []error{nil}}
		m, request := asked(t, k)
		change(request)
		if _, err := fetched(t, m, request); err == nil || len(k.taken) > 0 {
			t.Errorf("%s: %v, taken %v", what, err, k.taken)
		}
	}
}

// TestLayersWithoutSize: nothing is fetched of which nobody says how much it is, whoever is to have it.
func TestLayersWithoutSize(t *testing.T) {
	for _, name := range []string{"docker", ""} {
		layer := digest([]byte("not here"))
		k := &keeping{lacks: []engine.Lack{{Image: true, Layers: []string{layer}}}, take: []error{nil}}
		m, request := asked(t, k)
		config := strings.Replace(string(request.ConfigJson), request.Layers[0].DiffId, layer, 1)
		request.Engine, request.ConfigJson, request.Image = name, []byte(config), digest([]byte(config))
		request.Layers = []*api.Layer{{DiffId: layer}}
		if name == "" {
			request.ConfigJson = nil
		}
		if _, err := fetched(t, m, request); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("for %q: %v", name, err)
		}
	}
}

// TestIncoming: a layer is its archive, whatever it comes as; what is kept as a layer stays as it comes.
func TestIncoming(t *testing.T) {
	m, _ := asked(t, &keeping{})
	layer := layerOf(t, "another")
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(layer)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	in := incoming{m.spool, m, []string{digest(layer)}}
	for _, want := range [][]byte{layer, packed.Bytes()} {
		if err := in.BringLayer(t.Context(), digest(want), bytes.NewReader(packed.Bytes()),
			int64(len(layer))); err != nil {
			t.Fatal(err)
		}
		archive, err := in.OpenArchive(digest(want))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(archive); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, want %d; %v", len(got), len(want), err)
		}
		archive.Close()
	}
}

// TestManifestsTooLarge: what a request says of an image has bounds.
func TestManifestsTooLarge(t *testing.T) {
	m, request := asked(t, &keeping{})
	request.Manifests = [][]byte{make([]byte, maxManifests), {0}}
	if _, err := fetched(t, m, request); !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
}
