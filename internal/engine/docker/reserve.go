package docker

import (
	"context"
	"fmt"
	"slices"

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
		a.runtimeObstacles, a.terminalObstacles, a.volumeObstacles, a.addressObstacles, a.callObstacles,
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
func (a *adapter) runtimeObstacles(ctx context.Context, _ engine.Definition, _ extra) ([]engine.Problem,
	error) {
	ready, err := a.readiness(ctx)
	return ready.Problems, err
}

// Readiness looks at the Docker of this node. Error: engine.ErrAway.
func Readiness(ctx context.Context) (engine.Readiness, error) {
	a, err := newAdapter("")
	if err == nil {
		err = a.Away()
	}
	if err != nil {
		return engine.Readiness{Title: "Docker"}, err
	}
	defer a.close()
	return a.readiness(ctx)
}

func (a *adapter) readiness(ctx context.Context) (engine.Readiness, error) {
	ready := engine.Readiness{Title: a.Title()}
	info, err := a.api(ctx).Info(ctx, client.InfoOptions{})
	if err != nil {
		return ready, fmt.Errorf("ask Docker what it can do: %w", err)
	}
	ready.Version = info.Info.ServerVersion
	ready.Problems = engine.TooOld(title, ready.Version, oldest)
	if _, known := info.Info.Runtimes[Runtime]; !known {
		ready.Problems = append(ready.Problems, engine.Problem{
			What: "runtime " + Runtime + " of Docker", Why: "Docker does not know it",
			Remedy: "godwit engine setup docker",
		})
	}
	if why := storageObstacle(info.Info); why != "" {
		ready.Problems = append(ready.Problems, engine.Problem{
			What: "storage driver " + info.Info.Driver + " of Docker", Why: why, Remedy: "use overlay2",
		})
	}
	return ready, nil
}

// imageHere is the name of the image at which a container can be made here, which gets the
// container's if that is free.
func (a *adapter) imageHere(ctx context.Context, d engine.Definition, x extra) (string, error) {
	image, err := a.api(ctx).ImageInspect(ctx, d.Image)
	if err == nil && slices.Equal(image.RootFS.Layers, d.Layers) {
		return d.Image, nil // as it was started
	}
	refs := []string{d.ImageID}
	if x.Configuration != "" {
		refs = append(refs, x.Configuration)
	}
	id, err := a.called(ctx, d.Layers, refs...)
	if err != nil || id == "" {
		return d.ImageID, err
	}
	a.nameImage(ctx, d, id)
	image, err = a.api(ctx).ImageInspect(ctx, d.Image)
	if err == nil && image.ID == id {
		return d.Image, nil
	}
	return id, nil
}
