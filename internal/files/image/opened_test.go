package image

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// TestFitNames: an engine is never asked about a text from another node that is no image's name.
func TestFitNames(t *testing.T) {
	got := FitNames([]string{"nginx", "../containers/x", "localhost:5000/a/b:1", "a?b=c",
		"", "x@sha256:" + strings.Repeat("ab", 32), "UPPER/x"})
	if strings.Join(got, " ") != "nginx localhost:5000/a/b:1 x@sha256:"+strings.Repeat("ab", 32) {
		t.Errorf("%q", got)
	}
}

// TestOpenVerified: an archive that does not match the layer fails before its end, however it is
// compressed.
func TestOpenVerified(t *testing.T) {
	content := []byte(strings.Repeat("layer", 1000))
	var zipped, packed bytes.Buffer
	z := gzip.NewWriter(&zipped)
	p, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.WriteCloser{z, p} {
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	read := func(raw []byte, diffID string) ([]byte, error) {
		archive, err := OpenVerified(bytes.NewReader(raw), diffID)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(archive)
	}
	for what, raw := range map[string][]byte{"plain": content, "gzip": zipped.Bytes(),
		"zstd": packed.Bytes()} {
		if got, err := read(raw, digestOf(content)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
		if _, err := read(raw, digestOf(content[1:])); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s of another layer: %v", what, err)
		}
		if _, err := read(raw[:len(raw)/2], digestOf(content)); err == nil {
			t.Errorf("half of it, %s, is taken", what)
		}
	}
}

// TestChains: the lowest layer is identified by itself, each other one together with those below it.
func TestChains(t *testing.T) {
	a, b := "sha256:"+strings.Repeat("aa", 32), "sha256:"+strings.Repeat("bb", 32)
	got := Chains([]string{a, b, a})
	if len(got) != 3 || got[0] != a || got[1] != digestOf([]byte(a+" "+b)) ||
		got[2] != digestOf([]byte(got[1]+" "+a)) {
		t.Errorf("%q", got)
	}
	if len(Chains(nil)) != 0 {
		t.Error("no layers have a chain")
	}
}

// TestIsTagged: a name that an engine would complete is incomplete.
func TestIsTagged(t *testing.T) {
	for name, want := range map[string]bool{
		"docker.io/library/web:1": true, "localhost/web:latest": true, "localhost:5000/a/b:1": true,
		"web:1": false, "docker.io/library/web": false,
		"docker.io/library/web@sha256:" + strings.Repeat("ab", 32): false, "docker.io/web:1": false,
		"": false, "../x:1": false,
	} {
		if got := IsTagged(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
