package tarsplit

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/gzip"
)

// FuzzEntries: any stored form of an archive gives an archive of the announced size, or an error, and
// nothing of a file outside of the layer.
func FuzzEntries(f *testing.F) {
	secret := filepath.Join(f.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the node"), 0o600); err != nil {
		f.Fatal(err)
	}
	for _, entries := range []string{
		`{"type":2,"payload":"eA==","position":0}` + "\n" +
			`{"type":1,"name":"a","size":1,"payload":"AAAAAAAAAAA=","position":1}`,
		`{"type":1,"name":"../../../secret","size":11,"position":0}`,
		`{"type":1,"name":"a","size":-1,"position":0}`,
		`{"type":1,"name":"a","size":9223372036854775807,"position":0}` + "\n" +
			`{"type":1,"name":"b","size":1,"position":1}`,
		`{"type":7}`, `{`, ``,
	} {
		f.Add([]byte(entries))
	}
	directory := filepath.Join(f.TempDir(), "layer")
	if err := os.MkdirAll(directory, 0o700); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "a"), []byte("x"), 0o600); err != nil {
		f.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(directory, "b")); err != nil {
		f.Fatal(err)
	}
	kept := filepath.Join(f.TempDir(), "kept.gz")
	f.Fuzz(func(t *testing.T, entries []byte) {
		var zipped bytes.Buffer
		w := gzip.NewWriter(&zipped)
		if _, err := w.Write(entries); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(kept, zipped.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		told, sizeErr := size(kept)
		if sizeErr == nil && told < 0 {
			t.Fatalf("an archive of %d bytes", told)
		}
		archive, err := Open(kept, directory)
		if err != nil {
			return
		}
		defer archive.Close()
		content, err := io.ReadAll(io.LimitReader(archive, 1<<20))
		if bytes.Contains(content, []byte("of the node")) && !bytes.Contains(entries, []byte("of the node")) {
			t.Errorf("a file outside of the layer is in the archive")
		}
		if err == nil && sizeErr == nil && len(content) < 1<<20 && int64(len(content)) != told {
			t.Errorf("%d bytes came, %d were told", len(content), told)
		}
	})
}
