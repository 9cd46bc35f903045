package tarsplit

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"
	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kept makes an archive of files in an engine's stored form: the content in a directory, and the rest in a
// file.
func kept(t *testing.T, names ...string) (archive []byte, split, tree string) {
	t.Helper()
	tree = filepath.Join(t.TempDir(), "tree")
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range names {
		must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(name)), Mode: 0o640, Uid: 7}))
		_, err := io.WriteString(w, name)
		must(t, err)
		inside := filepath.Join(tree, filepath.Clean("/"+name))
		must(t, os.MkdirAll(filepath.Dir(inside), 0o755))
		must(t, os.WriteFile(inside, []byte(name), 0o644))
	}
	must(t, w.Close())
	out.Write(make([]byte, 4096)) // padding behind the end is part of it
	split = filepath.Join(t.TempDir(), "split.gz")
	f, err := os.Create(split)
	must(t, err)
	zipped := gzip.NewWriter(f)
	in, done, err := asm.NewInputTarStreamWithDone(bytes.NewReader(out.Bytes()),
		storage.NewJSONPacker(zipped), storage.NewDiscardFilePutter())
	must(t, err)
	_, err = io.Copy(io.Discard, in)
	must(t, errors.Join(err, in.Close(), <-done, zipped.Close(), f.Close()))
	return out.Bytes(), split, tree
}

// TestOpen: an archive is reproduced byte for byte, and its size is known before.
func TestOpen(t *testing.T) {
	archive, split, tree := kept(t, "etc/passwd", "bin/sh", ".wh.gone")
	var sizes Sizes
	for range 2 {
		if size, err := sizes.Of(split); err != nil || size != int64(len(archive)) {
			t.Errorf("%d bytes, %v; want %d", size, err, len(archive))
		}
	}
	opened, err := Open(split, tree)
	must(t, err)
	defer opened.Close()
	if got, err := io.ReadAll(opened); err != nil || !bytes.Equal(got, archive) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(archive))
	}
	if _, err := sizes.Of(split + "-gone"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
}

// TestHostile: other files in place of the archive's files are not read as if they were them.
func TestHostile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "dir", "x")
	must(t, os.MkdirAll(filepath.Dir(secret), 0o700))
	must(t, os.WriteFile(secret, []byte("dir/x"), 0o600)) // it would be taken for the one that was there
	for what, change := range map[string]func(tree string) error{
		"changed": func(tree string) error {
			return os.WriteFile(filepath.Join(tree, "file"), []byte("FILE"),
				0o644)
		},
		"gone": func(tree string) error { return os.Remove(filepath.Join(tree, "file")) },
		"link out": func(tree string) error {
			return errors.Join(os.Remove(filepath.Join(tree, "dir/x")),
				os.Symlink(secret, filepath.Join(tree, "dir/x")))
		},
		"directory that leads out": func(tree string) error {
			return errors.Join(os.RemoveAll(filepath.Join(tree, "dir")),
				os.Symlink(filepath.Dir(secret), filepath.Join(tree, "dir")))
		},
		"fifo": func(tree string) error {
			return errors.Join(os.Remove(filepath.Join(tree, "file")),
				unix.Mkfifo(filepath.Join(tree, "file"), 0o600))
		},
	} {
		_, split, tree := kept(t, "file", "dir/x")
		must(t, change(tree))
		archive, err := Open(split, tree)
		must(t, err)
		if _, err := io.ReadAll(archive); err == nil {
			t.Errorf("%s: it was read", what)
		}
		archive.Close()
	}
}

// TestHostileNames: a name that leads out of the directory is resolved within it.
func TestHostileNames(t *testing.T) {
	archive, split, tree := kept(t, "../../out", "/abs")
	opened, err := Open(split, tree)
	must(t, err)
	defer opened.Close()
	if got, err := io.ReadAll(opened); err != nil || !bytes.Equal(got, archive) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(archive))
	}
}
