package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refused loads an archive, which must fail and change nothing, inside or outside of the store.
func refused(t *testing.T, archive []byte) error {
	t.Helper()
	s := open(t)
	victim := filepath.Join(filepath.Dir(s.dir), "victim-of-"+filepath.Base(s.dir))
	before := everything(t, s.dir)
	images, err := s.LoadStream(context.Background(), bytes.NewReader(archive), nil)
	if err == nil {
		t.Fatalf("a bad archive was loaded: %+v", images)
	}
	if diff := cmp.Diff(before, everything(t, s.dir)); diff != "" {
		t.Errorf("after %v:\n%s", err, diff)
	}
	if _, statErr := os.Lstat(victim); statErr == nil {
		t.Error("something was written outside")
	}
	return err
}

func TestHostileLayers(t *testing.T) {
	overlayAttribute := regular("x", "")
	overlayAttribute.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/etc"}
	for what, layer := range map[string][]byte{
		"parent":                 pack(t, regular("../escaped", "x")),
		"parent inside":          pack(t, regular("a/../../escaped", "x")),
		"parent that comes back": pack(t, regular("a/../b", "x")),
		"absolute":               pack(t, regular("/tmp/escaped", "x")),
		"hard link to parent":    pack(t, link(tar.TypeLink, "l", "../../etc/shadow")),
		"absolute hard link":     pack(t, link(tar.TypeLink, "l", "/etc/shadow")),
		"hard link to nothing":   pack(t, link(tar.TypeLink, "l", "missing")),
		"through absolute link":  pack(t, link(tar.TypeSymlink, "l", "/tmp"), regular("l/escaped", "x")),
		"through relative link": pack(t, link(tar.TypeSymlink, "l", "../../../../tmp"),
			regular("l/escaped", "x")),
		"through a link's link": pack(t, link(tar.TypeSymlink, "a", ".."), link(tar.TypeSymlink, "b", "a"),
			regular("b/escaped", "x")),
		"hard link through link": pack(t, link(tar.TypeSymlink, "l", "/etc"),
			link(tar.TypeLink, "h", "l/hostname")),
		"whiteout of parent":      pack(t, regular(".wh...", "")),
		"whiteout of nothing":     pack(t, regular(".wh.", "")),
		"whiteout through a link": pack(t, link(tar.TypeSymlink, "l", "/tmp"), regular("l/.wh.x", "")),
		"overlay attribute":       pack(t, overlayAttribute),
		"unknown kind":            pack(t, file{Header: tar.Header{Typeflag: 'Z', Name: "z"}}),
	} {
		t.Run(what, func(t *testing.T) { refused(t, dockerArchive(t, "x:1", layer)) })
	}
}

func TestLayersThatLie(t *testing.T) {
	layer := base(t)
	lying := regular("f", "12345")
	raw := pack(t, lying)
	copy(raw[124:], "00000077777") // the size field of the first header
	fixChecksum(raw[:512])
	if err := refused(t, dockerArchive(t, "x:1", raw)); !strings.Contains(err.Error(), "EOF") {
		t.Errorf("a size larger than the archive: %v", err)
	}
	sparse := regular("f", "")
	sparse.PAXRecords = map[string]string{"VENDOR.x": "y"}
	raw = bytes.ReplaceAll(pack(t, sparse), []byte("VENDOR.x"), []byte("GNU.spar"))
	refused(t, dockerArchive(t, "x:1", raw[:len(raw)-600]))
	other := strings.Replace(string(config(t, layer)), digestOf(layer), digestOf([]byte("other")), 1)
	manifest := `[{"Config":"c","RepoTags":["x:1"],"Layers":["l"]}]`
	archive := pack(t, regular("c", other), regular("l", string(layer)), regular("manifest.json", manifest))
	if err := refused(t, archive); !errors.Is(err, ErrInvalid) {
		t.Errorf("a layer with another digest: %v", err)
	}
}

// fixChecksum makes a changed tar header valid again.
func fixChecksum(header []byte) {
	copy(header[148:], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	digits := []byte("000000\x00 ")
	for i := 5; i >= 0; i-- {
		digits[i] = byte('0' + sum&7)
		sum >>= 3
	}
	copy(header[148:], digits)
}

func TestHostileArchives(t *testing.T) {
	layer := base(t)
	cfg := string(config(t, layer))
	manifest := func(text string) file { return regular("manifest.json", text) }
	good := manifest(`[{"Config":"c","RepoTags":["x:1"],"Layers":["l"]}]`)
	foreign := strings.Replace(cfg, `"linux"`, `"plan9"`, 1)
	for what, archive := range map[string][]byte{
		"nothing":          nil,
		"garbage":          bytes.Repeat([]byte("garbage\n"), 1000),
		"empty archive":    pack(t),
		"neither":          pack(t, regular("something", "else")),
		"no configuration": pack(t, good, regular("l", string(layer))),
		"no layer":         pack(t, good, regular("c", cfg)),
		"too few layers":   pack(t, manifest(`[{"Config":"c","Layers":[]}]`), regular("c", cfg)),
		"no images":        pack(t, manifest(`[]`)),
		"not JSON":         pack(t, manifest(`<xml>`)),
		"bad name": pack(t, manifest(`[{"Config":"c","RepoTags":["../x y"],"Layers":["l"]}]`),
			regular("c", cfg), regular("l", string(layer))),
		"configuration outside": pack(t, manifest(`[{"Config":"../../../../etc/hostname","Layers":["l"]}]`),
			regular("l", string(layer))),
		"absolute layer": pack(t, manifest(`[{"Config":"c","Layers":["/etc/hostname"]}]`),
			regular("c", cfg)),
		"parent entry": pack(t, regular("../evil", "x"), good, regular("c", cfg),
			regular("l", string(layer))),
		"absolute entry": pack(t, regular("/evil", "x"), good, regular("c", cfg),
			regular("l", string(layer))),
		"link that leads out": pack(t, good, regular("c", cfg),
			link(tar.TypeSymlink, "l", "../../etc/hostname")),
		"absolute link": pack(t, good, regular("c", cfg),
			link(tar.TypeSymlink, "l", "/etc/hostname")),
		"link to itself": pack(t, good, regular("c", cfg), link(tar.TypeSymlink, "l", "l")),
		"device": pack(t, good, regular("c", cfg),
			file{Header: tar.Header{Typeflag: tar.TypeChar, Name: "l"}}),
		"other system":          pack(t, good, regular("c", foreign), regular("l", string(layer))),
		"configuration no JSON": pack(t, good, regular("c", "]"), regular("l", string(layer))),
	} {
		t.Run(what, func(t *testing.T) { refused(t, archive) })
	}
}

func TestLinksWithinAnArchiveAreFollowed(t *testing.T) {
	s, layer := open(t), base(t)
	load(t, s, pack(t, regular("a/layer.tar", string(layer)),
		link(tar.TypeSymlink, "b/layer.tar", "../a/layer.tar"),
		regular("c", string(config(t, layer, layer))),
		regular("manifest.json", `[{"Config":"c","RepoTags":null,"Layers":["a/layer.tar","b/layer.tar"]}]`)))
}

func TestTruncatedArchives(t *testing.T) {
	l := layout{}
	l.index(t, l.image(t, base(t), change(t)))
	for _, archive := range [][]byte{dockerArchive(t, "x:1", base(t), change(t)), l.pack(t)} {
		for length := 0; length < len(archive)-1024; length += 1500 {
			refused(t, archive[:length])
		}
		packed := gzipped(t, archive)
		refused(t, packed[:len(packed)-1])
	}
}

func TestHostileLayouts(t *testing.T) {
	plain := func() layout {
		l := layout{}
		l.index(t, l.image(t, base(t)))
		return l
	}
	spoil := func(old, replacement string) []byte {
		l := plain()
		for name, content := range l {
			l[name] = bytes.ReplaceAll(content, []byte(old), []byte(replacement))
		}
		return l.pack(t)
	}
	missingBlobs := plain()
	for name := range missingBlobs {
		if strings.HasPrefix(name, "blobs/") {
			delete(missingBlobs, name)
		}
	}
	unknown := layout{}
	unknown.index(t, unknown.blob(t, []byte("{}"), "application/vnd.example+json"))
	otherConfig := layout{}
	descriptor := otherConfig.blob(t,
		[]byte(`{"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json"}}`),
		types.OCIManifestSchema1)
	otherConfig.index(t, descriptor)
	damaged := plain()
	for name, content := range damaged {
		if bytes.HasPrefix(content, gzipMagic) {
			content[len(content)/2] ^= 1
			damaged[name] = content
		}
	}
	nothing := layout{}
	nothing.index(t)
	for what, archive := range map[string][]byte{
		"layer type":           spoil("tar+gzip", "tar+gzip+encrypted"),
		"algorithm":            spoil("sha256:", "sha1:"),
		"digest with a path":   spoil("sha256:", "sha256:../"),
		"no blobs":             missingBlobs.pack(t),
		"unknown media type":   unknown.pack(t),
		"not an image":         otherConfig.pack(t),
		"damaged layer":        damaged.pack(t),
		"nothing for us":       nothing.pack(t),
		"index that is no map": pack(t, regular("index.json", "[]")),
	} {
		t.Run(what, func(t *testing.T) { refused(t, archive) })
	}
}

func TestSizesThatLie(t *testing.T) {
	content := []byte("content")
	for _, size := range []int64{0, 6, 8, 1 << 62} {
		b := blob{digest: digestOf(content), size: size}
		if _, err := io.ReadAll(b.checked(bytes.NewReader(content))); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes announced: %v", size, err)
		}
	}
}

func TestCancelledLoadChangesNothing(t *testing.T) {
	s := open(t)
	before := everything(t, s.dir)
	ctx, cancel := context.WithCancel(context.Background())
	archive := filepath.Join(t.TempDir(), "a.tar")
	check(t, os.WriteFile(archive, dockerArchive(t, "x:1", base(t), change(t)), 0o600))
	_, err := s.Load(ctx, archive, func(string) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, everything(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

// FuzzLayer unpacks arbitrary archives.
func FuzzLayer(f *testing.F) {
	f.Add(base(f))
	f.Add(change(f))
	f.Add(gzipped(f, base(f)))
	f.Add(zstandard(f, change(f)))
	f.Add(pack(f, link(tar.TypeSymlink, "l", "../.."), regular("l/x", "y"), link(tar.TypeLink, "m", "l")))
	parent := f.TempDir()
	f.Fuzz(func(t *testing.T, archive []byte) {
		tree := filepath.Join(parent, "tree")
		check(t, os.Mkdir(tree, 0o755))
		keep, err := os.CreateTemp(t.TempDir(), "")
		check(t, err)
		defer keep.Close()
		if _, _, err := unpack(bytes.NewReader(archive), digestOf(archive), tree, keep, 0); err == nil &&
			len(archive) < 512 {
			t.Error("less than a header is no archive")
		}
		check(t, os.RemoveAll(tree))
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("outside: %v %v", left, err)
		}
	})
}

// FuzzLoad loads arbitrary archives.
func FuzzLoad(f *testing.F) {
	f.Add(dockerArchive(f, "x:1", base(f)))
	l := layout{}
	l.index(f, l.image(f, change(f)))
	f.Add(l.pack(f))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, archive []byte) {
		path := filepath.Join(dir, "archive")
		check(t, os.WriteFile(path, archive, 0o600))
		file, err := os.Open(path)
		check(t, err)
		from, err := openTarball(file)
		if err != nil {
			return
		}
		defer from.Close()
		images, err := list(from)
		if err != nil {
			return
		}
		for _, image := range images {
			_, _ = parseConfig(image.config)
		}
	})
}
