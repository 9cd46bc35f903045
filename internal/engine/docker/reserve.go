package docker

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
)

// Reserve lists what stands against making this container here.
func (a *adapter) Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	x, err := decode(d)
	if err != nil {
		return nil, err
	}
	problems := obstacles(x.Host)
	for _, look := range []func(context.Context, engine.Definition, extra) ([]engine.Problem, error){
		a.runtimeObstacles, a.imageObstacles, a.volumeObstacles,
	} {
		found, err := look(ctx, d, x)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// runtimeObstacles wants Docker to know godwit-runc, and to keep files as this package expects it.
func (a *adapter) runtimeObstacles(ctx context.Context, _ engine.Definition, _ extra) ([]engine.Problem, error) {
	info, err := a.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask Docker what it can do: %w", err)
	}
	var found []engine.Problem
	if _, known := info.Info.Runtimes[Runtime]; !known {
		found = append(found, engine.Problem{
			What: "runtime " + Runtime + " of Docker", Why: "Docker does not know it", Remedy: "godwit engine setup docker",
		})
	}
	if info.Info.Driver != "overlay2" {
		found = append(found, engine.Problem{
			What: "storage driver " + info.Info.Driver + " of Docker", Why: "only overlay2 is supported", Remedy: "use overlay2",
		})
	}
	return found, nil
}

// imageObstacles wants the image to be here: the same layers, whatever it is called.
func (a *adapter) imageObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem, error) {
	for _, ref := range []string{d.ImageID, d.Image} {
		image, err := a.api.ImageInspect(ctx, ref)
		if err == nil && slices.Equal(image.RootFS.Layers, x.Layers) {
			return nil, nil
		}
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsInvalidArgument(err) {
			return nil, fmt.Errorf("ask Docker about image %s: %w", ref, err)
		}
	}
	return []engine.Problem{{
		What: "image " + d.Image, Why: "Docker has none with these layers on this node", Remedy: "docker pull it here, or docker save and docker load it",
	}}, nil
}

// imageHere is the name of the image at which a container can be made here.
func (a *adapter) imageHere(ctx context.Context, d engine.Definition, x extra) string {
	image, err := a.api.ImageInspect(ctx, d.Image)
	if err == nil && slices.Equal(image.RootFS.Layers, x.Layers) {
		return d.Image // as it was started
	}
	return d.ImageID
}
