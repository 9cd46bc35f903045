package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// PullOptions say how to access a registry.
type PullOptions struct {
	PlainHTTP bool   // use HTTP; for registries on localhost and at private addresses it is tried anyway
	Platform  string // such as linux/arm64/v8; empty: this node's
}

// Pull adds an image from a registry. It uses the credentials that docker login or podman login have
// stored.
func (s *Store) Pull(ctx context.Context, ref string, options PullOptions, progress Progress) (Image, error) {
	release, err := s.Hold()
	if err != nil {
		return Image{}, err
	}
	defer release()
	image, err := loader{s, progress}.pull(ctx, ref, options)
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", ref, explain(err))
	}
	return image, nil
}

func (l loader) pull(ctx context.Context, ref string, options PullOptions) (Image, error) {
	var how []name.Option
	if options.PlainHTTP {
		how = append(how, name.Insecure)
	}
	reference, err := name.ParseReference(ref, how...)
	if err != nil {
		return Image{}, err
	}
	platform := &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	if options.Platform != "" {
		if platform, err = v1.ParsePlatform(options.Platform); err != nil {
			return Image{}, fmt.Errorf("platform %q: %w", options.Platform, err)
		}
	}
	l.progress.say("asking %s for %s", reference.Context().RegistryStr(), reference.Identifier())
	remoteImage, err := remote.Image(reference, remote.WithContext(ctx), remote.WithPlatform(*platform),
		remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("godwit"))
	if err != nil {
		return Image{}, err
	}
	image, err := describeRemote(remoteImage)
	if err != nil {
		return Image{}, err
	}
	canonical, err := canonicalName(ref)
	if err != nil {
		return Image{}, err
	}
	image.names = []string{canonical}
	images, err := l.addAll(ctx, []found{image})
	if err != nil {
		return Image{}, err
	}
	origin := Origin{Repository: reference.Context().Name(), PlainHTTP: options.PlainHTTP}
	for i, diffID := range images[0].Layers {
		origin.Layers = append(origin.Layers,
			OriginBlob{DiffID: diffID, Digest: image.blobs[i].digest, Size: image.blobs[i].size})
	}
	return images[0], saveOrigin(filepath.Join(l.store.imageDir(images[0].ID), originName), origin)
}

// describeRemote reads the manifest and the configuration, whose digests the library compares.
func describeRemote(remoteImage v1.Image) (found, error) {
	manifest, err := remoteImage.Manifest()
	if err != nil {
		return found{}, err
	}
	if !manifest.Config.MediaType.IsConfig() {
		return found{}, fmt.Errorf("%w: it is something else (configuration of media type %.100q)",
			ErrInvalid, manifest.Config.MediaType)
	}
	if manifest.Config.Size > MaxConfig {
		return found{}, fmt.Errorf("%w: its configuration has %d bytes, at most %d are allowed", ErrInvalid,
			manifest.Config.Size, MaxConfig)
	}
	image := found{}
	if image.config, err = remoteImage.RawConfigFile(); err != nil {
		return found{}, err
	}
	for _, descriptor := range manifest.Layers {
		if err := checkLayerType(descriptor.MediaType); err != nil {
			return found{}, err
		}
		image.blobs = append(image.blobs, blob{
			digest: descriptor.Digest.String(),
			size:   descriptor.Size,
			open: func() (io.ReadCloser, error) {
				layer, err := remoteImage.LayerByDigest(descriptor.Digest)
				if err != nil {
					return nil, err
				}
				return layer.Compressed()
			},
		})
	}
	return image, nil
}

// explain adds remedies to a registry's usual refusals.
func explain(err error) error {
	var refused *transport.Error
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("%w: the registry has no such image: %w", ErrNotFound, err)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the registry has no such image or wants a login (docker login, podman login): %w",
			err)
	}
	return err
}
