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

// A Docker that has its containerd keep images calls an image by what its name leads to, an index
// or a manifest, and not by its configuration (moby, daemon/containerd/image.go). Nothing of an
// image is there for it of which the archive of a layer is missing.

// dangling is what Docker calls an image without a name (moby, daemon/containerd/soft_delete.go).
func dangling(_, target string) string { return "moby-dangling@" + target }

// only refuses other namespaces than Docker's.
func only(namespace string) func(string) error {
	return func(asked string) error {
		if asked != namespace {
			return fmt.Errorf("namespace %.80q is not Docker's", asked)
		}
		return nil
	}
}

// contents is Docker's containerd if it keeps images; nil: Docker keeps them itself.
func (a *adapter) contents(ctx context.Context) (*containerd, error) {
	if by, err := a.asksContainerd(ctx); !by || err != nil {
		return nil, err
	}
	return a.ownContainerd(ctx)
}

// kept is the same for what is asked without a context.
func (s *imageStore) kept() (*containerd, error) {
	if err := s.docker.Away(); err != nil {
		return nil, err
	}
	ctx, cancel := asking(context.Background())
	defer cancel()
	return s.docker.contents(ctx)
}

// keeperFor is how long it is believed who keeps Docker's images when many layers are asked for: to
// learn it Docker has to be restarted.
const keeperFor = 5 * time.Second

// keeper is who was found to keep Docker's images last, and when.
type keeper struct {
	mu    sync.Mutex
	asked time.Time
	found *containerd
}

// keptElsewhere is Docker's containerd if Docker itself has not a layer, which containerd may have;
// nil: nobody knows of it.
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

// imageIn finds an image that containerd keeps by what Docker calls it, or by its configuration,
// and tells what Docker calls it. Error: engine.ErrNoImage.
func (a *adapter) imageIn(ctx context.Context, c *containerd, digest string) (name string, found engine.Image,
	err error) {
	seen := map[string]image.InspectResponse{} // as Docker sees them, by what it calls them
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

// called is what Docker calls an image of these layers that one of some references leads to, or the
// configuration of which is among them; "": there is none.
func (a *adapter) called(ctx context.Context, layers []string, refs ...string) (string, error) {
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
	// removed meanwhile, or not whole
	if errdefs.IsNotFound(err) || err == nil && !slices.Equal(found.RootFS.Layers, layers) {
		return "", nil
	}
	return name, err
}

// configurationOf is that of the image of a container; "" if there is no such image any more.
func (a *adapter) configurationOf(ctx context.Context, id string, layers []string) (string, error) {
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
