package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/godwit/godwit/internal/kernel"
)

// Origin says where an image was pulled from, so that other nodes can get its layers from there, too.
type Origin struct {
	Repository string       `json:"repository"` // with its registry
	PlainHTTP  bool         `json:"plain_http"`
	Layers     []OriginBlob `json:"layers"`
}

// OriginBlob is a layer as stored by a registry.
type OriginBlob struct {
	DiffID string `json:"diff_id"`
	Digest string `json:"digest"` // of the blob, which may be compressed
	Size   int64  `json:"size_bytes"`
}

const (
	originName = "origin.json"
	// maxOrigin bounds an origin: 256 bytes for each of its layers, and some for the rest.
	maxOrigin = maxLayers*256 + 4096
)

// ParseOrigin checks another node's statement about an image's origin.
func ParseOrigin(document []byte) (Origin, error) {
	var origin Origin
	if len(document) > maxOrigin {
		return Origin{}, fmt.Errorf("%w: its origin has %d bytes, at most %d are allowed", ErrInvalid,
			len(document), maxOrigin)
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	if err := decoder.Decode(&origin); err != nil {
		return Origin{}, fmt.Errorf("%w: its origin: %w", ErrInvalid, err)
	}
	return origin, origin.check()
}

func (o Origin) check() error {
	if _, err := o.repository(); err != nil {
		return err
	}
	if len(o.Layers) > maxLayers {
		return fmt.Errorf("%w: its origin has %d layers, at most %d are possible", ErrInvalid, len(o.Layers),
			maxLayers)
	}
	for _, layer := range o.Layers {
		if !digestPattern.MatchString(layer.DiffID) || !digestPattern.MatchString(layer.Digest) ||
			layer.Size < 0 {
			return fmt.Errorf("%w: its origin: layer %.80q is blob %.80q of %d bytes", ErrInvalid,
				layer.DiffID, layer.Digest, layer.Size)
		}
	}
	return nil
}

func (o Origin) repository() (name.Repository, error) {
	options := []name.Option{name.StrictValidation}
	if o.PlainHTTP {
		options = append(options, name.Insecure)
	}
	for part := range strings.SplitSeq(o.Repository, "/") {
		// the library lets them pass, and they would lead out of the registry's own paths
		if part == "." || part == ".." {
			return name.Repository{}, fmt.Errorf("%w: its origin: %.100q is not a repository", ErrInvalid,
				o.Repository)
		}
	}
	repository, err := name.NewRepository(o.Repository, options...)
	if err != nil {
		return name.Repository{}, fmt.Errorf("%w: its origin: %w", ErrInvalid, err)
	}
	return repository, nil
}

// Registry returns the host that has the image; empty: it came from no registry.
func (o Origin) Registry() string {
	repository, err := o.repository()
	if err != nil {
		return ""
	}
	return repository.RegistryStr()
}

// blob finds a layer.
func (o Origin) blob(diffID string) (OriginBlob, bool) {
	i := slices.IndexFunc(o.Layers, func(l OriginBlob) bool { return l.DiffID == diffID })
	if i < 0 {
		return OriginBlob{}, false
	}
	return o.Layers[i], true
}

// Has returns the size of a layer at the registry.
func (o Origin) Has(diffID string) (size int64, ok bool) {
	blob, ok := o.blob(diffID)
	return blob.Size, ok
}

// Open starts reading a layer from the registry, with the credentials that docker login or podman login
// have stored. It sends no credentials without encryption, because another node may have claimed that the
// registry uses none. It returns io.EOF only if size and digest are those of the origin.
func (o Origin) Open(ctx context.Context, diffID string) (io.ReadCloser, error) {
	repository, err := o.repository()
	if err != nil {
		return nil, err
	}
	want, ok := o.blob(diffID)
	if !ok {
		return nil, fmt.Errorf("%s has no layer %.80q", o.Repository, diffID)
	}
	var keychain authn.Keychain = authn.DefaultKeychain
	if o.PlainHTTP {
		keychain = authn.NewMultiKeychain() // an empty keychain
	}
	layer, err := remote.Layer(repository.Digest(want.Digest), remote.WithContext(ctx),
		remote.WithAuthFromKeychain(keychain), remote.WithUserAgent("godwit"))
	if err != nil {
		return nil, explain(err)
	}
	raw, err := layer.Compressed()
	if err != nil {
		return nil, explain(err)
	}
	checked := blob{digest: want.Digest, size: want.Size}.checked(raw)
	return struct {
		io.Reader
		io.Closer
	}{checked, raw}, nil
}

// Origin returns where an image was pulled from. Error: ErrNotFound if it was not pulled, or if that is
// unknown.
func (s *Store) Origin(imageID string) (Origin, error) {
	if !digestPattern.MatchString(imageID) {
		return Origin{}, fmt.Errorf("%w: %.80q is not the ID of an image", ErrNotFound, imageID)
	}
	raw, err := os.ReadFile(filepath.Join(s.imageDir(imageID), originName))
	if errors.Is(err, fs.ErrNotExist) {
		return Origin{}, fmt.Errorf("%w from a registry: %s", ErrNotFound, imageID)
	}
	if err != nil {
		return Origin{}, fmt.Errorf("image %s: %w", imageID, err)
	}
	return ParseOrigin(raw)
}

// ImportOrigin records the origin of an image whose configuration is here, unless it is known.
func (s *Store) ImportOrigin(imageID string, origin Origin) error {
	if _, err := s.Config(imageID); err != nil {
		return err
	}
	path := filepath.Join(s.imageDir(imageID), originName)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	return saveOrigin(path, origin)
}

func saveOrigin(path string, origin Origin) error {
	if err := origin.check(); err != nil {
		return err
	}
	raw, err := json.Marshal(origin)
	if err != nil {
		return err
	}
	return kernel.WriteFileAtomic(path, append(raw, '\n'), 0o600)
}
