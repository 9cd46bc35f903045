package podman

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"

	"github.com/godwit/godwit/internal/engine"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testStorage is the storage of a Podman whose commands all fail.
type testStorage struct {
	*imageStore
	root   string
	layers []map[string]any
	images []map[string]any
}

func newStorage(t *testing.T) *testStorage {
	t.Helper()
	fakePodman(t, "exit 1")
	root := t.TempDir()
	for _, dir := range []string{"overlay-containers", imagesDir, layersDir} {
		must(t, os.Mkdir(filepath.Join(root, dir), 0o700))
	}
	a := newAdapter(filepath.Join(t.TempDir(), "coming"))
	a.root = root
	return &testStorage{imageStore: a.images, root: root}
}

func (s *testStorage) write(t *testing.T, path string, value any) {
	t.Helper()
	data, err := json.Marshal(value)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.root, path+".new"), data, 0o600))
	must(t, os.Rename(filepath.Join(s.root, path+".new"), filepath.Join(s.root, path)))
}

func idOf(word string) string { return (word + strings.Repeat("0", 64))[:64] }

// layer puts a layer with one file into the storage, and returns its DiffID.
func (s *testStorage) layer(t *testing.T, id, parent, content string) (diffID string, archive []byte) {
	t.Helper()
	var out, split bytes.Buffer
	w := tar.NewWriter(&out)
	must(t, w.WriteHeader(&tar.Header{Name: "file", Size: int64(len(content)), Mode: 0o644}))
	_, err := io.WriteString(w, content)
	must(t, errors.Join(err, w.Close()))
	zipped := gzip.NewWriter(&split)
	in, done, err := asm.NewInputTarStreamWithDone(bytes.NewReader(out.Bytes()),
		storage.NewJSONPacker(zipped), storage.NewDiscardFilePutter())
	must(t, err)
	_, err = io.Copy(io.Discard, in)
	must(t, errors.Join(err, in.Close(), <-done, zipped.Close()))
	tree := filepath.Join(s.root, "overlay", id, "diff")
	must(t, os.MkdirAll(tree, 0o755))
	must(t, os.WriteFile(filepath.Join(tree, "file"), []byte(content), 0o644))
	must(t, os.WriteFile(filepath.Join(s.root, layersDir, id+tarSplit), split.Bytes(), 0o600))
	diffID = describeBlob("", out.Bytes()).Digest
	s.list(t, map[string]any{"id": id, "parent": parent, "diff-digest": diffID})
	return diffID, out.Bytes()
}

func (s *testStorage) list(t *testing.T, layer map[string]any) {
	t.Helper()
	s.layers = append(s.layers, layer)
	s.write(t, filepath.Join(layersDir, layerList), s.layers)
}

// image puts an image into the storage.
func (s *testStorage) image(t *testing.T, top, config string, names ...string) (id string) {
	t.Helper()
	id = describeBlob("", []byte(config)).Digest
	dir := filepath.Join(s.root, imagesDir, strings.TrimPrefix(id, idPrefix))
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "="+base64.StdEncoding.EncodeToString([]byte(id))),
		[]byte(config), 0o600))
	s.images = append(s.images, map[string]any{"id": strings.TrimPrefix(id, idPrefix), "names": names,
		"layer": top})
	s.write(t, filepath.Join(imagesDir, "images.json"), s.images)
	return id
}

// TestImages checks that Podman's images are recognised by their layers and configuration.
func TestImages(t *testing.T) {
	s := newStorage(t)
	if all, err := s.AllImages(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("an empty storage: %v, %v", all, err)
	}
	low, archive := s.layer(t, idOf("a"), "", "low")
	high, _ := s.layer(t, idOf("b"), idOf("a"), "high")
	id := s.image(t, idOf("b"), `{"config": 1}`, "docker.io/library/web:1")
	s.list(t, map[string]any{"id": idOf("c"), "parent": idOf("b")}) // of a container

	got, err := s.Image(t.Context(), id)
	if err != nil || !slices.Equal(got.Layers, []string{low, high}) ||
		string(got.Config) != `{"config": 1}` || !slices.Equal(got.Names, []string{"web:1"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if size, err := s.LayerBytes(low); err != nil || size != int64(len(archive)) {
		t.Errorf("%d bytes, %v; want %d", size, err, len(archive))
	}
	opened, err := s.OpenLayer(low)
	must(t, err)
	defer opened.Close()
	if read, err := io.ReadAll(opened); err != nil || !bytes.Equal(read, archive) {
		t.Errorf("%d bytes, %v", len(read), err)
	}
	for _, unknown := range []string{"", "sha256:../x", id} {
		if _, err := s.OpenLayer(unknown); !errors.Is(err, engine.ErrNoLayer) {
			t.Errorf("layer %q: %v", unknown, err)
		}
	}
	if _, err := s.Image(t.Context(), low); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("what is no image: %v", err)
	}
}

// TestHere checks that a container is made from the image with its layers: by the image's name, or by its
// ID if another image has the name.
func TestHere(t *testing.T) {
	s := newStorage(t)
	low, _ := s.layer(t, idOf("a"), "", "low")
	other, _ := s.layer(t, idOf("b"), "", "other")
	id := s.image(t, idOf("a"), "1", "localhost/web:1")
	s.image(t, idOf("b"), "2", "localhost/taken:1")
	for what, c := range map[string]struct {
		image engine.Image
		want  string
		lacks []string
	}{
		"as it was": {engine.Image{ID: id, Names: []string{"localhost/web:1"}, Layers: []string{low}},
			"localhost/web:1", nil},
		"its name is free": {engine.Image{ID: id, Names: []string{"localhost/new:1"},
			Layers: []string{low}}, id[7:], nil},
		"its name is another's, of another image": {engine.Image{ID: id, Names: []string{"localhost/taken:1"},
			Layers: []string{low}}, id[7:], nil},
		"its layers lie in another order": {engine.Image{ID: testLayer, Names: []string{"localhost/web:1"},
			Layers: []string{other, low}}, "", []string{}},
		"a layer is nowhere": {engine.Image{ID: testLayer, Layers: []string{low, testLayer}}, "",
			[]string{testLayer}},
	} {
		ref, err := s.here(c.image)
		if err != nil || ref != c.want {
			t.Errorf("%s: %q, %v; want %q", what, ref, err, c.want)
		}
		lack, err := s.Lacks(t.Context(), c.image)
		if err != nil || lack.Image != (c.want == "") || !slices.Equal(lack.Layers, c.lacks) {
			t.Errorf("%s: lacks %+v, %v", what, lack, err)
		}
	}
}

// TestHostileStorage checks that incomplete and inconsistent entries are not reported.
func TestHostileStorage(t *testing.T) {
	for what, change := range map[string]func(s *testStorage, diffID, id string) error{
		"incomplete": func(s *testStorage, _, _ string) error {
			s.layers[0]["flags"] = map[string]any{"incomplete": true}
			s.write(t, filepath.Join(layersDir, layerList), s.layers)
			return nil
		},
		"no archive": func(s *testStorage, _, _ string) error {
			return os.Remove(filepath.Join(s.root, layersDir, idOf("a")+tarSplit))
		},
		"changed": func(s *testStorage, _, _ string) error {
			return os.WriteFile(filepath.Join(s.root, "overlay", idOf("a"), "diff", "file"), []byte("LOW"),
				0o644)
		},
		"path": func(s *testStorage, _, _ string) error {
			s.layers[0]["id"] = "../" + idOf("a")
			s.write(t, filepath.Join(layersDir, layerList), s.layers)
			return nil
		},
	} {
		s := newStorage(t)
		diffID, _ := s.layer(t, idOf("a"), "", "low")
		id := s.image(t, idOf("a"), "1")
		must(t, change(s, diffID, id))
		archive, err := s.OpenLayer(diffID)
		if err == nil {
			_, err = io.ReadAll(archive)
			archive.Close()
		}
		if err == nil {
			t.Errorf("%s: it was sent", what)
		}
	}
	s := newStorage(t)
	s.layer(t, idOf("a"), "", "low")
	id := s.image(t, idOf("a"), "1")
	must(t, os.WriteFile(filepath.Join(s.root, imagesDir, id[7:],
		"="+base64.StdEncoding.EncodeToString([]byte(id))), []byte("2"), 0o600))
	if _, err := s.Image(t.Context(), id); err == nil {
		t.Error("a damaged configuration was told")
	}
	s.layers[0]["parent"] = idOf("a") // upon itself
	s.write(t, filepath.Join(layersDir, layerList), s.layers)
	if all, err := s.AllImages(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("layers without an end: %v, %v", all, err)
	}
}

// TestWrite checks that the directory for Podman has the parts that Podman lacks, and describes the whole
// image.
func TestWrite(t *testing.T) {
	s := newStorage(t)
	low, archive := s.layer(t, idOf("a"), "", "low")
	file := filepath.Join(t.TempDir(), "spooled")
	must(t, os.WriteFile(file, []byte("high"), 0o600))
	spooled, err := os.Open(file)
	must(t, err)
	third := "sha256:" + strings.Repeat("3c", 32)
	coming := imagestore.OpenedLayers{
		{DiffID: testLayer, Archive: spooled, Bytes: 4},
		{DiffID: third, Archive: io.NopCloser(strings.NewReader("third")), Bytes: 5},
	}
	defer coming.Close()
	dir := t.TempDir()
	must(t, s.imageStore.write(dir,
		engine.Image{Config: []byte("{}"), Layers: []string{low, testLayer, third}}, coming))
	must(t, os.Remove(file)) // another engine has taken it
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	must(t, err)
	var m manifest
	must(t, json.Unmarshal(data, &m))
	want := []descriptor{{typeLayer, int64(len(archive)), low}, {typeLayer, 4, testLayer},
		{typeLayer, 5, third}}
	if !slices.Equal(m.Layers, want) || m.Config != describeBlob(typeConfig, []byte("{}")) {
		t.Errorf("it is %s", data)
	}
	for diffID, content := range map[string]string{testLayer: "high", third: "third"} {
		if got, err := os.ReadFile(filepath.Join(dir, diffID[7:])); err != nil || string(got) != content {
			t.Errorf("%s is %q, %v", diffID, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, low[7:])); !errors.Is(err, os.ErrNotExist) {
		t.Error("a layer that is there is written")
	}
	lies := imagestore.OpenedLayers{{DiffID: third, Archive: io.NopCloser(strings.NewReader("third")),
		Bytes: 6}}
	if err := s.imageStore.write(t.TempDir(), engine.Image{Layers: []string{third}}, lies); err == nil {
		t.Error("a layer that is shorter than it was said to be is written")
	}
	if err := s.imageStore.write(t.TempDir(), engine.Image{Layers: []string{third}}, nil); !errors.Is(err,
		engine.ErrNoLayer) {
		t.Errorf("a layer that nobody has: %v", err)
	}
}

// TestTakeFails checks that every failure leaves the directory from which Podman takes images empty.
func TestTakeFails(t *testing.T) {
	s := newStorage(t)
	image := engine.Image{ID: testLayer, Config: []byte("{}"), Layers: []string{testLayer}}
	for what, open := range map[string]func(string) (io.ReadCloser, int64, error){
		"Podman": func(string) (io.ReadCloser, int64,
			error) {
			return io.NopCloser(strings.NewReader("high")), 4, nil
		},
		"the layer": func(string) (io.ReadCloser, int64, error) { return nil, 0, engine.ErrNoLayer },
		"its size": func(string) (io.ReadCloser, int64,
			error) {
			return io.NopCloser(strings.NewReader("high")), 5, nil
		},
		"the room": func(string) (io.ReadCloser, int64, error) {
			return io.NopCloser(strings.NewReader("high")), 1 << 60, nil
		},
	} {
		if err := s.Take(t.Context(), image, open); err == nil {
			t.Errorf("%s fails, and it is taken", what)
		}
		if left, _ := os.ReadDir(s.coming); len(left) > 0 {
			t.Errorf("%s: left %v", what, left)
		}
	}
	dir, err := s.makeDirectory(wholePrefix)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "manifest.json"), []byte("{"), 0o600))
	must(t, s.sweep(context.Background()))
	if left, _ := os.ReadDir(s.coming); len(left) > 0 {
		t.Errorf("swept: left %v", left)
	}
}

// TestUndo checks that the taken part of an incomplete image is removed, and nothing else, even if the
// agent did not live to do it.
func TestUndo(t *testing.T) {
	for _, killed := range []bool{false, true} {
		s := newStorage(t)
		low, archive := s.layer(t, idOf("a"), "", "low")
		list, seen := filepath.Join(s.root, layersDir, layerList), filepath.Join(t.TempDir(), "seen")
		must(t, os.Rename(list, list+".later")) // once Podman has taken it
		fakePodman(t, `case "$1" in
			pull) [ -e `+list+` ] || { mv `+list+`.later `+list+`; exit 1; }
				cp "${3#dir:}/manifest.json" `+seen+` ;;
			rmi) printf %s "$2" >`+seen+`-removed ;;
		esac`)
		image := engine.Image{ID: testLayer, Config: []byte("{}"), Layers: []string{low, testLayer}}
		open := func(diffID string) (io.ReadCloser, int64, error) {
			return io.NopCloser(bytes.NewReader(archive)), int64(len(archive)), nil
		}
		if killed {
			coming, err := imagestore.OpenLayers(image.Layers, open)
			must(t, err)
			dir, err := s.makeDirectory(wholePrefix)
			must(t, err)
			must(t, s.imageStore.write(dir, image, coming))
			if err := pull(t.Context(), dir); err == nil {
				t.Error("Podman has not failed")
			}
			must(t, s.sweep(t.Context()))
		} else if err := s.Take(t.Context(), image, open); err == nil {
			t.Error("Podman has failed, and it is taken")
		}
		var m manifest
		data, err := os.ReadFile(seen)
		must(t, err)
		must(t, json.Unmarshal(data, &m))
		removed, err := os.ReadFile(seen + "-removed")
		if err != nil || len(m.Layers) != 1 || m.Layers[0].Digest != low ||
			idPrefix+string(removed) != m.Config.Digest {
			t.Errorf("removed %s, which is %s: %v", removed, data, err)
		}
		if left, _ := os.ReadDir(s.coming); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	}
}

// TestUndoFails checks that an image whose received part cannot be removed stays recorded, without the
// layers that need room, and is removed when that is possible again.
func TestUndoFails(t *testing.T) {
	for what, refused := range map[string]string{"taking": "pull", "removing": "rmi"} {
		s := newStorage(t)
		low, archive := s.layer(t, idOf("a"), "", "low")
		list, full := filepath.Join(s.root, layersDir, layerList), filepath.Join(t.TempDir(), "full")
		must(t, errors.Join(os.Rename(list, list+".later"), os.WriteFile(full, nil, 0o600)))
		fakePodman(t, `[ -e `+list+` ] || { mv `+list+`.later `+list+`; exit 1; }
			[ "$1" != `+refused+` ] || [ ! -e `+full+` ] || exit 1
			[ "$1" != rmi ] || echo '[]' >`+list)
		image := engine.Image{ID: testLayer, Config: []byte("{}"), Layers: []string{low, testLayer}}
		open := func(string) (io.ReadCloser, int64, error) {
			return io.NopCloser(bytes.NewReader(archive)), int64(len(archive)), nil
		}
		if err := s.Take(t.Context(), image, open); err == nil {
			t.Error("Podman has failed, and it is taken")
		}
		for range 2 {
			if left, _ := filepath.Glob(s.coming + "/*/*"); len(left) == 0 ||
				slices.Contains(left, low[7:]) || s.sweep(t.Context()) == nil {
				t.Errorf("%s: left %v", what, left)
			}
		}
		must(t, os.Remove(full))
		for range 2 { // the second call at the latest undoes what failed in between
			_ = s.sweep(t.Context())
		}
		table, err := s.index.read(s.root)
		left, _ := os.ReadDir(s.coming)
		if err != nil || len(table.byID) > 0 || len(left) > 0 {
			t.Errorf("%s: left %v, %d layers, %v", what, left, len(table.byID), err)
		}
	}
}

// TestTakeWaits checks that a caller that waits for another image can give up.
func TestTakeWaits(t *testing.T) {
	s := newStorage(t)
	s.taking <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Take(ctx, engine.Image{ID: testLayer, Layers: []string{testLayer}}, nil); !errors.Is(err,
		context.Canceled) {
		t.Error(err)
	}
}
