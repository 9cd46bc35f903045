package podman

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// Media types of what an image consists of (Docker's image manifest, version 2, schema 2).
const (
	typeManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeConfig   = "application/vnd.docker.container.image.v1+json"
	typeLayer    = "application/vnd.docker.image.rootfs.diff.tar"
)

// manifest says what an image consists of.
type manifest struct {
	Version   int          `json:"schemaVersion"`
	MediaType string       `json:"mediaType"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Size      int64  `json:"size"`
	Digest    string `json:"digest"`
}

func describeBlob(mediaType string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	return descriptor{mediaType, int64(len(content)), idPrefix + hex.EncodeToString(sum[:])}
}

// Take has Podman take an image out of a directory (podman pull dir:PATH): it either has all of it
// then, or nothing new.
func (s *imageStore) Take(ctx context.Context, image engine.Image,
	open func(string) (io.ReadCloser, int64, error)) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	if err := s.take(ctx, image, open); err != nil {
		return fmt.Errorf("have Podman take image %s: %w", image.ID, err)
	}
	return nil
}

// begin waits until nothing else is taken, or swept: two that take one image would need its room twice.
func (s *imageStore) begin(ctx context.Context) error {
	select {
	case s.taking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until Podman has taken another image: %w", context.Cause(ctx))
	}
}

func (s *imageStore) end() { <-s.taking }

func (s *imageStore) take(ctx context.Context, image engine.Image, open imagestore.Opener) error {
	lack, err := s.Lacks(ctx, image)
	if err != nil || !lack.Image {
		return err
	}
	coming, err := imagestore.OpenLayers(lack.Layers, open)
	if err != nil {
		return err
	}
	defer coming.Close()
	_ = s.sweep(ctx) // what could not be undone before: if it cannot be now, it is tried again
	had, err := s.index.read(s.podman.root)
	if err != nil {
		return err
	}
	dir, err := s.makeDirectory(wholePrefix)
	if err != nil {
		return err
	}
	var left error
	defer func() {
		if left == nil {
			_ = files.RemoveTree(dir) // sweep does it otherwise
		}
	}()
	if err := errors.Join(files.CheckSpace(s.coming, copiesOfPull*coming.Bytes()),
		files.CheckSpace(s.podman.root, coming.Bytes())); err != nil {
		return err
	}
	if err := s.write(dir, image, coming); err != nil {
		return err
	}
	if err := pull(ctx, dir); err != nil {
		if left = keepManifest(dir); left == nil { // which gives room to undo it
			left = s.undo(context.WithoutCancel(ctx), image.Layers, had.stacked(image.Layers))
		}
		return errors.Join(err, left)
	}
	if lack, err = s.Lacks(ctx, image); err == nil && lack.Image {
		err = errors.New("the engine loaded a different image, or the image was removed since")
	}
	return err
}

// keepManifest leaves of an image that was to come what says which layers may have come.
func keepManifest(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.Name() != manifestFile {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}

const manifestFile = "manifest.json"

// copiesOfPull is how often a layer is beside Podman's storage while it is taken: as it came,
// unless it is a file, and as Podman has read it.
const copiesOfPull = 2

// What directories are for: an image that is to come, or what has come of one and is to be removed.
const (
	wholePrefix = "image-"
	partPrefix  = "part-"
)

func (s *imageStore) makeDirectory(prefix string) (string, error) {
	if err := os.MkdirAll(s.coming, 0o700); err != nil {
		return "", err
	}
	return os.MkdirTemp(s.coming, prefix)
}

// write makes a directory with an image, but for the layers that are there: Podman looks for those
// by their digests.
func (s *imageStore) write(dir string, image engine.Image, coming imagestore.OpenedLayers) error {
	m := manifest{Version: 2, MediaType: typeManifest, Config: describeBlob(typeConfig, image.Config)}
	sizes := map[string]int64{}
	for _, layer := range coming {
		if err := writeLayer(filepath.Join(dir, strings.TrimPrefix(layer.DiffID, idPrefix)),
			layer); err != nil {
			return fmt.Errorf("layer %s: %w", layer.DiffID, err)
		}
		sizes[layer.DiffID] = layer.Bytes
	}
	for _, diffID := range image.Layers {
		bytes, is := sizes[diffID]
		if !is {
			var err error
			if bytes, err = s.LayerBytes(diffID); err != nil {
				return err
			}
		}
		m.Layers = append(m.Layers, descriptor{typeLayer, bytes, diffID})
	}
	return writeManifest(dir, m, image.Config)
}

// writeManifest says what a directory is.
func writeManifest(dir string, m manifest, config []byte) error {
	described, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, strings.TrimPrefix(m.Config.Digest, idPrefix)), config, 0o600),
		os.WriteFile(filepath.Join(dir, manifestFile), described, 0o600),
	)
}

// writeLayer puts a layer's archive at a place: the file that it is, also if somebody else who has
// taken it removes its name, or a copy.
func writeLayer(path string, layer imagestore.Opened) error {
	if file, is := layer.Archive.(interface{ Name() string }); is && filepath.IsAbs(file.Name()) {
		if os.Link(file.Name(), path) == nil {
			return nil
		}
		return os.Symlink(file.Name(), path) // it lies in another file system
	}
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	copied, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{layer.Archive},
		make([]byte, 256<<10))
	if err == nil && copied != layer.Bytes {
		err = fmt.Errorf("it has %d bytes, not %d", copied, layer.Bytes)
	}
	return errors.Join(err, to.Close())
}

// pull has Podman take what is in a directory. It ends with this process: what is half done is
// undone by the next one. What Podman needs on its way is in the directory, too.
func pull(ctx context.Context, dir string) error {
	runtime.LockOSThread() // whose end is taken for the process's
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "podman", "pull", "--quiet", "dir:"+dir)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	_, err := run(ctx, cmd)
	return err
}

// undo removes the layers that have come of an image of which not all could come, upon those that
// were there. Podman removes layers with an image only: so they are made one, and that is removed.
func (s *imageStore) undo(ctx context.Context, layers []string, had int) error {
	ctx, cancel := context.WithTimeout(ctx, undoPatience)
	defer cancel()
	table, err := s.index.read(s.podman.root)
	if err != nil {
		return err
	}
	came := table.stacked(layers)
	if came <= had {
		return nil
	}
	config, err := configOf(layers[:came])
	if err != nil {
		return err
	}
	dir, err := s.makeDirectory(partPrefix)
	if err != nil {
		return err
	}
	part := engine.Image{ID: describeBlob(typeConfig, config).Digest, Config: config, Layers: layers[:came]}
	if err = s.write(dir, part, nil); err == nil {
		err = pull(ctx, dir)
	}
	if err == nil {
		if err = removeImage(ctx, part.ID); err != nil {
			// sweep tries again, by what is in the directory
			return fmt.Errorf("remove the part of it that has arrived: %w", err)
		}
	}
	if err = errors.Join(err, files.RemoveTree(dir)); err != nil {
		return fmt.Errorf("remove the part of it that has arrived: %w", err)
	}
	return nil
}

func removeImage(ctx context.Context, id string) error {
	_, err := podman(ctx, "rmi", strings.TrimPrefix(id, idPrefix))
	return err
}

// undoPatience bounds how long it may take to undo something.
const undoPatience = time.Minute

// configOf is the configuration of an image that nobody else has.
func configOf(layers []string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "author": rand.Text(), "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": layers},
	})
}

// sweep undoes what could not be undone, or what an agent did not live to do. Of what cannot be
// undone now either the directory stays.
func (s *imageStore) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, undoPatience) // Podman may wait for a lock of its storage
	defer cancel()
	left, err := os.ReadDir(s.coming)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range left {
		dir := filepath.Join(s.coming, entry.Name())
		failed := s.undoDirectory(ctx, dir)
		if failed == nil {
			failed = files.RemoveTree(dir)
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		return fmt.Errorf("images that were to come to Podman: %w", err)
	}
	return nil
}

// undoDirectory undoes what was to be taken out of a directory, unless it was.
func (s *imageStore) undoDirectory(ctx context.Context, dir string) error {
	var was manifest
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil || json.Unmarshal(data, &was) != nil { // Podman had not begun
		return nil //nolint:nilerr // said
	}
	switch _, err := s.Image(ctx, was.Config.Digest); {
	case err == nil && strings.HasPrefix(filepath.Base(dir), partPrefix):
		return removeImage(ctx, was.Config.Digest)
	case !errors.Is(err, engine.ErrNoImage):
		return err
	}
	var layers []string
	for _, layer := range was.Layers {
		layers = append(layers, layer.Digest)
	}
	return s.undo(ctx, layers, 0)
}
