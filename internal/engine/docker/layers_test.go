package docker

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"

	"github.com/godwit/godwit/internal/engine"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// packed returns an archive of files by name, with extra bytes after its end.
func packed(t *testing.T, files map[string]string, order ...string) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range order {
		must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(files[name])), Mode: 0o640, Uid: 7}))
		_, err := w.Write([]byte(files[name]))
		must(t, err)
	}
	must(t, w.Close())
	archive.Write(make([]byte, 4096))
	return archive.Bytes()
}

// stored puts a layer into a directory as Docker keeps it. It returns the layer's DiffID and the directory
// of its files.
func stored(t *testing.T, root, chain string, archive []byte, files map[string]string) (diffID, tree string) {
	t.Helper()
	sum := sha256.Sum256(archive)
	diffID = "sha256:" + hex.EncodeToString(sum[:])
	dir := filepath.Join(root, layerDB, chain)
	tree = filepath.Join(root, "overlay2", chain, "diff")
	must(t, errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(tree, 0o755)))
	for name, content := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(tree, name), []byte(content), 0o644))
	}
	var split bytes.Buffer
	zipped := gzip.NewWriter(&split)
	in, done, err := asm.NewInputTarStreamWithDone(bytes.NewReader(archive), storage.NewJSONPacker(zipped),
		storage.NewDiscardFilePutter())
	must(t, err)
	_, err = io.Copy(io.Discard, in)
	must(t, errors.Join(err, in.Close(), <-done, zipped.Close()))
	for name, content := range map[string][]byte{"diff": []byte(diffID), "cache-id": []byte(chain),
		tarSplit: split.Bytes()} {
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return diffID, tree
}

// storeAt returns the images of a Docker that keeps them in a directory.
func storeAt(t *testing.T, root string) *imageStore {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	must(t, os.WriteFile(socket, nil, 0o600))
	e, err := New(Config{StateDir: t.TempDir(), Socket: socket, Executable: "/bin/true"})
	must(t, err)
	e.docker.root = root
	return e.images
}

// TestLayers checks that a layer's archive is reassembled byte for byte from what Docker has kept, and that
// its size is known beforehand.
func TestLayers(t *testing.T) {
	files := map[string]string{"bin/sh": "#!", "etc/passwd": "root:x:0:0\n", "empty": "", ".wh.gone": ""}
	archive := packed(t, files, "etc/passwd", "bin/sh", "empty", ".wh.gone")
	root := t.TempDir()
	diffID, _ := stored(t, root, "aa", archive, files)
	images := storeAt(t, root)
	if size, err := images.LayerBytes(diffID); err != nil || size != int64(len(archive)) {
		t.Errorf("%d bytes, %v; want %d", size, err, len(archive))
	}
	opened, err := images.OpenLayer(diffID)
	must(t, err)
	defer opened.Close()
	if got, err := io.ReadAll(opened); err != nil || !bytes.Equal(got, archive) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(archive))
	}
	// Docker has meanwhile received another layer
	other, _ := stored(t, root, "bb", packed(t, files, "empty"), files)
	if _, err := images.LayerBytes(other); err != nil {
		t.Error(err)
	}
	must(t, os.RemoveAll(filepath.Join(root, layerDB, "aa")))
	if _, err := images.LayerBytes(diffID); !errors.Is(err, engine.ErrNoLayer) {
		t.Errorf("what was removed: %v", err)
	}
	for _, id := range []string{"sha256:../aa", "aa", "", "sha256:" + diffID} {
		if _, err := images.OpenLayer(id); !errors.Is(err, engine.ErrNoLayer) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestHostileLayers checks that nothing is sent that has replaced a layer's original files.
func TestHostileLayers(t *testing.T) {
	for what, change := range map[string]func(tree, dir string) error{
		"changed": func(tree, _ string) error {
			return os.WriteFile(filepath.Join(tree, "file"),
				[]byte("CONTEN"), 0o644)
		},
		"place": func(_, dir string) error {
			return os.WriteFile(filepath.Join(dir, "cache-id"),
				[]byte("../aa"), 0o600)
		},
		"no place": func(_, dir string) error {
			return os.WriteFile(filepath.Join(dir, "cache-id"),
				[]byte(".."), 0o600)
		},
	} {
		files := map[string]string{"file": "conten"}
		root := t.TempDir()
		diffID, tree := stored(t, root, "aa", packed(t, files, "file"), files)
		must(t, change(tree, filepath.Join(root, layerDB, "aa")))
		archive, err := storeAt(t, root).OpenLayer(diffID)
		if err == nil {
			_, err = io.ReadAll(archive)
			archive.Close()
		}
		if err == nil {
			t.Errorf("%s: it was sent", what)
		}
	}
}

// TestStacked checks that a layer counts only on top of all layers below it.
func TestStacked(t *testing.T) {
	files := map[string]string{"file": "x"}
	root := t.TempDir()
	low, _ := stored(t, root, "low", packed(t, files, "file"), files)
	high, _ := stored(t, root, "high", packed(t, files), files)
	chain := sha256.Sum256([]byte(low + " " + high))
	must(t, os.Rename(filepath.Join(root, layerDB, "low"), filepath.Join(root, layerDB, low[7:])))
	if got := stacked(root, []string{low, high}); got != 1 {
		t.Errorf("the upper one alone: %d, want 1", got)
	}
	must(t, os.MkdirAll(filepath.Join(root, layerDB, hex.EncodeToString(chain[:])), 0o700))
	if got := stacked(root, []string{low, high}); got != 2 {
		t.Errorf("the upper one upon the other: %d, want 2", got)
	}
	if got := stacked(root, []string{high, low}); got != 0 {
		t.Errorf("in another order: %d", got)
	}
}
