package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
)

func open(t *testing.T) *Store {
	t.Helper()
	dir, err := os.MkdirTemp("", "godwit-image-")
	check(t, err)
	t.Cleanup(func() { check(t, files.RemoveTree(dir)) })
	s, err := Open(dir)
	check(t, err)
	return s
}

func base(t testing.TB) []byte {
	suid := regular("bin/suid", "#!")
	suid.Mode, suid.Uid, suid.Gid = 0o4755, 7, 8
	capable := regular("bin/capable", "x")
	capable.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04" +
		strings.Repeat("\x00", 14)}
	return pack(t, dir("./"), dir("bin/"), regular("bin/sh", "shell"), suid, capable, dir("etc"),
		regular("etc/old", "old"),
		dir("etc/dir"), regular("etc/dir/hidden", "hidden"), link(tar.TypeLink, "bin/bash", "bin/sh"),
		link(tar.TypeSymlink, "etc/mtab", "/proc/mounts"), link(tar.TypeSymlink, "lib", "usr/lib"),
		dir("usr/lib"), regular("lib/libc", "through a link"))
}

func change(t testing.TB) []byte {
	return pack(t, regular("etc/.wh.old", ""), dir("etc/dir"), regular("etc/dir/.wh..wh..opq", ""),
		regular("etc/dir/new", "new"))
}

func load(t *testing.T, s *Store, archive []byte) []Image {
	t.Helper()
	images, err := s.LoadStream(context.Background(), bytes.NewReader(archive), nil)
	check(t, err)
	return images
}

// merged mounts an image's layers as in a container.
func merged(t *testing.T, s *Store, image Image) string {
	t.Helper()
	var lower []string
	for _, layer := range slices.Backward(image.Layers) {
		path, err := s.LayerPath(layer)
		check(t, err)
		lower = append(lower, path)
	}
	target := t.TempDir()
	lower = append(lower, t.TempDir()) // an overlay needs two layers
	check(t, unix.Mount("overlay", target, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lower, ":")))
	t.Cleanup(func() { check(t, unix.Unmount(target, 0)) })
	return target
}

func TestLoadedImage(t *testing.T) {
	s := open(t)
	images := load(t, s, dockerArchive(t, "example.org/app:1", base(t), change(t)))
	if len(images) != 1 {
		t.Fatalf("%d images", len(images))
	}
	want := Image{
		ID: digestOf(config(t, base(t), change(t))), Names: []string{"example.org/app:1"},
		Layers: []string{digestOf(base(t)), digestOf(change(t))}, Architecture: images[0].Architecture,
		Size: images[0].Size,
		Config: Config{Entrypoint: []string{"/bin/sh"}, Cmd: []string{"-c", "true"}, Env: []string{"A=b"},
			WorkingDir: "/work", ExposedPorts: []string{"80/tcp"}, Volumes: []string{}},
	}
	if diff := cmp.Diff(want, images[0]); diff != "" {
		t.Error(diff)
	}
	root := merged(t, s, images[0])
	for path, content := range map[string]string{"bin/sh": "shell", "bin/bash": "shell", "etc/dir/new": "new",
		"usr/lib/libc": "through a link"} {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(got) != content {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for _, path := range []string{"etc/old", "etc/dir/hidden"} {
		if _, err := os.Lstat(filepath.Join(root, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s should be gone: %v", path, err)
		}
	}
	var stat unix.Stat_t
	check(t, unix.Stat(filepath.Join(root, "bin/suid"), &stat))
	if stat.Mode&0o7777 != 0o4755 || stat.Uid != 7 || stat.Gid != 8 {
		t.Errorf("bin/suid is %#o %d:%d", stat.Mode, stat.Uid, stat.Gid)
	}
	if n, err := unix.Getxattr(filepath.Join(root, "bin/capable"), "security.capability",
		make([]byte, 64)); n != 20 || err != nil {
		t.Errorf("capability: %d, %v", n, err)
	}
}

func TestLayouts(t *testing.T) {
	l := layout{}
	here := l.image(t, base(t), change(t), pack(t, regular("third", "3")))
	here.Annotations = map[string]string{"org.opencontainers.image.ref.name": "example.org/layout:2"}
	here.Platform = &v1.Platform{OS: "linux", Architecture: here.Digest.Algorithm}
	foreign := here
	here.Platform = nil
	l.index(t, foreign, here)
	onDisk := t.TempDir()
	l.write(t, onDisk)
	archive := filepath.Join(t.TempDir(), "layout.tar.gz")
	check(t, os.WriteFile(archive, gzipped(t, l.pack(t)), 0o600))
	for _, path := range []string{onDisk, archive} {
		s := open(t)
		var said []string
		images, err := s.Load(context.Background(), path, func(text string) { said = append(said, text) })
		check(t, err)
		if len(images) != 1 || len(images[0].Layers) != 3 || images[0].Names[0] != "example.org/layout:2" ||
			len(said) != 3 {
			t.Errorf("%s: %+v %q", path, images, said)
		}
		if got, err := os.ReadFile(filepath.Join(merged(t, s, images[0]), "third")); string(got) != "3" {
			t.Errorf("third: %q %v", got, err)
		}
	}
}

func TestPull(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	l := layout{}
	l.index(t, l.image(t, base(t), change(t)))
	onDisk := t.TempDir()
	l.write(t, onDisk)
	path, err := ocilayout.FromPath(onDisk)
	check(t, err)
	index, err := path.ImageIndex()
	check(t, err)
	manifest, err := index.IndexManifest()
	check(t, err)
	image, err := index.Image(manifest.Manifests[0].Digest)
	check(t, err)
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/some/app:3", name.Insecure)
	check(t, err)
	check(t, remote.Write(ref, image))

	s := open(t)
	pulled, err := s.Pull(context.Background(), ref.String(), PullOptions{PlainHTTP: true}, nil)
	check(t, err)
	again, err := s.Resolve(ref.String())
	check(t, err)
	if diff := cmp.Diff(pulled, again); diff != "" || len(pulled.Layers) != 2 {
		t.Errorf("%s %+v", diff, pulled)
	}
	missing := strings.Replace(ref.String(), "some/app", "some/other", 1)
	if _, err := s.Pull(context.Background(), missing, PullOptions{PlainHTTP: true}, nil); !errors.Is(err,
		ErrNotFound) {
		t.Errorf("an image that is not there: %v", err)
	}
	if _, err := s.Pull(context.Background(), "not a name", PullOptions{}, nil); err == nil {
		t.Error("an impossible name was pulled")
	}
}

func TestNames(t *testing.T) {
	s := open(t)
	one := load(t, s, dockerArchive(t, "redis:7", base(t)))[0]
	two := load(t, s, dockerArchive(t, "localhost/busybox:latest", base(t), change(t)))[0]
	for ref, want := range map[string]string{
		"redis:7": one.ID, "docker.io/library/redis:7": one.ID, "index.docker.io/library/redis:7": one.ID,
		"busybox": two.ID, "localhost/busybox": two.ID, two.ID: two.ID, one.ID[7:19]: one.ID,
	} {
		if got, err := s.Resolve(ref); err != nil || got.ID != want {
			t.Errorf("%s: %s, %v", ref, got.ID, err)
		}
	}
	for _, ref := range []string{"", "redis", "redis:8", "../x", "sha256:", "abc", strings.Repeat("f", 64),
		"UPPER/case"} {
		if got, err := s.Resolve(ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v, %v", ref, got, err)
		}
	}
	moved := load(t, s, dockerArchive(t, "redis:7", change(t)))[0]
	if got, err := s.Resolve("redis:7"); err != nil || got.ID != moved.ID {
		t.Errorf("a name goes to the image that was loaded last: %v %v", got, err)
	}
	if images, err := s.List(); err != nil || len(images) != 3 {
		t.Errorf("%v %v", images, err)
	}
}

func TestRemove(t *testing.T) {
	s, ctx := open(t), context.Background()
	one := load(t, s, dockerArchive(t, "one:1", base(t)))[0]
	load(t, s, dockerArchive(t, "uno:1", base(t)))
	two := load(t, s, dockerArchive(t, "two:2", base(t), change(t)))[0]
	if err := s.Remove(ctx, "none", nil); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	check(t, s.Remove(ctx, "one:1", func(string) bool { return true })) // only a name is removed
	if err := s.Remove(ctx, "uno:1", func(id string) bool { return id == one.ID }); !errors.Is(err,
		ErrInUse) {
		t.Error(err)
	}
	release, err := s.Hold()
	check(t, err)
	if err := s.Remove(ctx, "two:2", nil); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	release()
	check(t, s.Remove(ctx, "two:2", nil))
	if s.Has(two.ID) || s.HasLayer(digestOf(change(t))) || !s.HasLayer(digestOf(base(t))) || !s.Has(one.ID) {
		t.Error("the wrong layers were removed")
	}
	check(t, s.Remove(ctx, one.ID, func(string) bool { return false }))
	if left := everything(t, s.layersDir()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestLayersMoveBetweenStores exports an image from one store and imports it into another, as a migration
// does.
func TestLayersMoveBetweenStores(t *testing.T) {
	from, to, ctx := open(t), open(t), context.Background()
	image := load(t, from, dockerArchive(t, "app:1", base(t), change(t)))[0]
	raw, err := from.Config(image.ID)
	check(t, err)
	check(t, to.ImportConfig(ctx, image.ID, raw))
	check(t, to.ImportName(image.ID, "app:1"))
	if to.Has(image.ID) {
		t.Error("an image without its layers counts as here")
	}
	for _, bad := range [][2]string{{"sha256:" + strings.Repeat("0", 64), "app:2"}, {image.ID, "UPPER CASE"},
		{image.ID, ""}, {"../x", "app:2"}} {
		if err := to.ImportName(bad[0], bad[1]); err == nil {
			t.Errorf("image %.20q was named %q", bad[0], bad[1])
		}
	}
	if _, err := to.Resolve("app:1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("resolve an incomplete image: %v", err)
	}
	for _, layer := range image.Layers {
		var stream bytes.Buffer
		check(t, from.ExportLayer(ctx, layer, &stream))
		info, err := from.Layer(layer)
		check(t, err)
		if int64(stream.Len()) != info.Stored {
			t.Errorf("%d bytes, %d announced", stream.Len(), info.Stored)
		}
		check(t, to.ImportLayer(ctx, layer, &stream))
	}
	got, err := to.Resolve("app:1")
	check(t, err)
	if diff := cmp.Diff(image, got); diff != "" {
		t.Error(diff)
	}
	for path, content := range everything(t, from.dir) {
		other := strings.Replace(path, from.dir, to.dir, 1)
		if !strings.HasSuffix(path, infoName) && everything(t, to.dir)[other] != content {
			t.Errorf("%s differs", other)
		}
	}
	if err := to.ExportLayer(ctx, "sha256:"+strings.Repeat("0", 64), &bytes.Buffer{}); err == nil {
		t.Error("a layer that is not here was exported")
	}
}

func TestImportRefuses(t *testing.T) {
	s, ctx := open(t), context.Background()
	before := everything(t, s.dir)
	layer := base(t)
	good := zstandard(t, layer)
	for what, stream := range map[string][]byte{
		"another layer": zstandard(t, change(t)), "truncated": good[:len(good)-20], "nothing": nil,
		"garbage":        bytes.Repeat([]byte("garbage "), 200),
		"garbage behind": append(bytes.Clone(good), "garbage"...),
	} {
		if err := s.ImportLayer(ctx, digestOf(layer), bytes.NewReader(stream)); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	for _, id := range []string{"", "sha256:..", "../../etc", "sha512:" + strings.Repeat("0", 64),
		digestOf(layer) + "/"} {
		if err := s.ImportLayer(ctx, id, bytes.NewReader(good)); err == nil {
			t.Errorf("DiffID %q was accepted", id)
		}
	}
	raw := config(t, layer)
	if err := s.ImportConfig(ctx, digestOf(layer), raw); !errors.Is(err, ErrInvalid) {
		t.Errorf("a configuration with another digest: %v", err)
	}
	if err := s.ImportConfig(ctx, digestOf([]byte("{}")), []byte("{}")); !errors.Is(err, ErrInvalid) {
		t.Errorf("an image without layers: %v", err)
	}
	if diff := cmp.Diff(before, everything(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

func TestConcurrentLoads(t *testing.T) {
	s := open(t)
	other, err := Open(s.dir) // as in another process
	check(t, err)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			archive := dockerArchive(t, fmt.Sprintf("app:%d", i), base(t), change(t))
			store := []*Store{s, other}[i%2]
			if _, err := store.LoadStream(context.Background(), bytes.NewReader(archive), nil); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	images, err := s.List()
	check(t, err)
	if len(images) != 1 || len(images[0].Names) != 8 {
		t.Errorf("%+v", images)
	}
	for path := range everything(t, s.dir) {
		if strings.Contains(path, temporary) {
			t.Errorf("%s is left", path)
		}
	}
}

func TestOpenRemovesWhatIsUnfinished(t *testing.T) {
	s := open(t)
	check(t, os.MkdirAll(filepath.Join(s.layersDir(), temporary+"1", "fs/etc"), 0o755))
	check(t, os.MkdirAll(filepath.Join(s.imagesDir(), temporary+"2"), 0o755))
	_, err := Open(s.dir)
	check(t, err)
	if left := everything(t, s.layersDir()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
