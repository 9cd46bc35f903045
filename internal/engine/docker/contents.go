package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/image"

	"github.com/godwit/godwit/internal/engine"
)

// A Docker that keeps images in its containerd identifies an image by the digest of the index or manifest
// to which its name leads, and not by its configuration (moby, daemon/containerd/image.go). For such a
// Docker, an image does not exist if the archive of any of its layers is missing.

// dangling returns Docker's name for an image without a name (moby, daemon/containerd/soft_delete.go).
func dangling(_, target string) string { return "moby-dangling@" + target }

// only returns a check that refuses all namespaces except Docker's.
func only(namespace string) func(string) error {
	return func(asked string) error {
		if asked != namespace {
			return fmt.Errorf("namespace %.80q is not Docker's", asked)
		}
		return nil
	}
}

// ownContents are the images and root file systems that Docker keeps in its containerd.
type ownContents struct {
	*server

	mu         sync.Mutex
	containerd *containerd // set once it was used
}

// contents returns Docker's containerd if it keeps images, or nil if Docker keeps them itself.
func (a *ownContents) contents(ctx context.Context) (*containerd, error) {
	if by, err := a.asksContainerd(ctx); !by || err != nil {
		return nil, err
	}
	return a.ownContainerd(ctx)
}

// kept is contents for callers without a context.
func (s *imageStore) kept() (*containerd, error) {
	if err := s.docker.Away(); err != nil {
		return nil, err
	}
	ctx, cancel := asking(context.Background())
	defer cancel()
	return s.docker.contents(ctx)
}

// keeperFor is how long the answer which program keeps Docker's images is reused, because callers may
// request many layers. The answer changes only with a restart of Docker.
const keeperFor = 5 * time.Second

// keeper is the last answer which program keeps Docker's images.
type keeper struct {
	mu    sync.Mutex
	asked time.Time
	found *containerd
}

// keptElsewhere returns Docker's containerd, which may have a layer that Docker itself lacks, or nil if
// there is no such containerd.
func (s *imageStore) keptElsewhere(err error) *containerd {
	if !errors.Is(err, engine.ErrNoLayer) {
		return nil
	}
	k := &s.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asked.IsZero() || time.Since(k.asked) > keeperFor {
		found, err := s.kept()
		if err != nil {
			return nil
		}
		k.found, k.asked = found, time.Now()
	}
	return k.found
}

// imageIn finds an image that containerd keeps, by Docker's ID for it or by its configuration. It returns
// Docker's ID. Error: engine.ErrNoImage.
func (a *ownContents) imageIn(
	ctx context.Context, c *containerd, digest string,
) (name string, found engine.Image, err error) {
	seen := map[string]image.InspectResponse{} // as Docker shows them, by Docker's ID
	err = c.images.In(ctx, c.namespace, func(target string, one engine.Image) {
		if name != "" || one.ID != digest && target != digest {
			return
		}
		told, asked := seen[target]
		if !asked {
			// otherwise it was removed meanwhile
			if found, err := a.api(ctx).ImageInspect(ctx, target); err == nil {
				told = found.InspectResponse
			}
			seen[target] = told
		}
		if slices.Equal(told.RootFS.Layers, one.Layers) {
			name, found = target, one
			found.Names = told.RepoTags
		}
	})
	if err == nil && name == "" {
		err = fmt.Errorf("image %.80q of Docker: %w", digest, engine.ErrNoImage)
	}
	return name, found, err
}

// called returns Docker's ID of an image with these layers, to which one of the references leads, or whose
// configuration is among them; "" if there is none.
func (a *ownContents) called(ctx context.Context, layers []string, refs ...string) (string, error) {
	for _, ref := range refs {
		found, err := a.api(ctx).ImageInspect(ctx, ref)
		other := diffIDPattern.MatchString(ref) && found.ID != ref
		if err == nil && !other && slices.Equal(found.RootFS.Layers, layers) {
			return found.ID, nil
		}
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsInvalidArgument(err) {
			return "", fmt.Errorf("ask Docker about image %.80q: %w", ref, err)
		}
	}
	c, err := a.contents(ctx)
	if err != nil || c == nil {
		return "", err
	}
	name := ""
	err = c.images.In(ctx, c.namespace, func(target string, one engine.Image) {
		if name == "" && slices.Contains(refs, one.ID) && slices.Equal(one.Layers, layers) {
			name = target
		}
	})
	if err != nil || name == "" {
		return "", err
	}
	found, err := a.api(ctx).ImageInspect(ctx, name)
	// removed meanwhile, or incomplete
	if errdefs.IsNotFound(err) || err == nil && !slices.Equal(found.RootFS.Layers, layers) {
		return "", nil
	}
	return name, err
}

// configurationOf returns the configuration's digest of a container's image; "" if the image no longer
// exists.
func (a *ownContents) configurationOf(ctx context.Context, id string, layers []string) (string, error) {
	c, err := a.ownContainerd(ctx)
	if err != nil {
		return "", err
	}
	_, found, err := a.imageIn(ctx, c, id)
	if errors.Is(err, engine.ErrNoImage) || err == nil && !slices.Equal(found.Layers, layers) {
		return "", nil
	}
	return found.ID, err
}
