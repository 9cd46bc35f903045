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

// Media types of the parts of an image (Docker's image manifest, version 2, schema 2).
const (
	typeManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeConfig   = "application/vnd.docker.container.image.v1+json"
	typeLayer    = "application/vnd.docker.image.rootfs.diff.tar"
)

// manifest lists the parts of an image.
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

// Take makes Podman take an image from a directory (podman pull dir:PATH). Then Podman has either all of
// the image, or nothing new.
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

// begin waits until nothing else is taken or swept: two copies of one image would need its room twice.
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
	_ = s.sweep(ctx) // repeats undos that failed before; a failure now is retried later
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
			_ = files.RemoveTree(dir) // otherwise sweep does it
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
		if left = keepManifest(dir); left == nil { // this frees room for the undo
			left = s.undo(context.WithoutCancel(ctx), image.Layers, had.stacked(image.Layers))
		}
		return errors.Join(err, left)
	}
	if lack, err = s.Lacks(ctx, image); err == nil && lack.Image {
		err = errors.New("the engine loaded a different image, or the image was removed since")
	}
	return err
}

// keepManifest deletes everything of an image except the list of layers that may have come.
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

// copiesOfPull is the number of copies of a layer besides Podman's storage while Podman takes it: as it
// came, unless it is a file, and as Podman has read it.
const copiesOfPull = 2

// Purposes of directories: an image that is to come, or the received part of an image that is to be
// removed.
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

// write makes a directory with an image, without the layers that are already there: Podman finds those by
// their digests.
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

// writeManifest describes the contents of a directory.
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

// writeLayer puts a layer's archive at a path: the file itself if it is one, which then survives even if
// another taker removes its name, or else a copy.
func writeLayer(path string, layer imagestore.Opened) error {
	if file, is := layer.Archive.(interface{ Name() string }); is && filepath.IsAbs(file.Name()) {
		if os.Link(file.Name(), path) == nil {
			return nil
		}
		return os.Symlink(file.Name(), path) // it is in another file system
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

// pull makes Podman take the contents of a directory. Podman ends together with this process, and the next
// process undoes half-finished work. Podman's temporary files are in the directory, too.
func pull(ctx context.Context, dir string) error {
	runtime.LockOSThread() // the thread's end would count as the process's
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "podman", "pull", "--quiet", "dir:"+dir)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	_, err := run(ctx, cmd)
	return err
}

// undo removes the received layers of an incomplete image, down to those that were there before. Podman
// removes layers only with an image, so undo makes an image of them, and removes it.
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
			// sweep repeats this, using the contents of the directory
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

// undoPatience bounds how long an undo may take.
const undoPatience = time.Minute

// configOf returns a configuration for an image that nobody else has.
func configOf(layers []string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "author": rand.Text(), "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": layers},
	})
}

// sweep repeats undos that failed, or that an agent did not live to do. If an undo fails again, its
// directory stays.
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

// undoDirectory undoes taking an image from a directory, unless the image was taken completely.
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
