package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/door"
)

// Reserve lists what stands against restoring this container here.
func (e *Engine) Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	x, err := decode(d)
	if err != nil {
		return nil, err
	}
	if !e.here() {
		return []engine.Problem{{
			What: "Docker", Why: "it does not run on this node: nothing is at " + e.config.Socket, Remedy: "install Docker, and start it",
		}}, nil
	}
	problems := obstacles(x.Host)
	if _, err := e.criu.Tool(); err != nil {
		problems = append(problems, engine.Problem{What: "CRIU", Why: err.Error(), Remedy: "run \"godwit doctor\" on this node"})
	}
	for _, look := range []func(context.Context, engine.Definition, extra) ([]engine.Problem, error){
		e.runtimeObstacles, e.nameObstacles, e.imageObstacles, e.volumeObstacles,
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
func (e *Engine) runtimeObstacles(ctx context.Context, _ engine.Definition, _ extra) ([]engine.Problem, error) {
	info, err := e.api.Info(ctx, client.InfoOptions{})
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
	if e.config.RunDir != door.RunDir {
		found = append(found, engine.Problem{
			What: "the agent's run directory " + e.config.RunDir, Why: door.Program + " looks in " + door.RunDir, Remedy: "start the agent without --run",
		})
	}
	return found, nil
}

func (e *Engine) nameObstacles(ctx context.Context, d engine.Definition, _ extra) ([]engine.Problem, error) {
	if exists(e.arrivalPath(d.ID)) || exists(e.departurePath(d.ID)) {
		return []engine.Problem{{What: "container " + d.Name, Why: "it is arriving here, or leaving", Remedy: "wait until that is over"}}, nil
	}
	if _, err := e.find(ctx, d.ID); !errors.Is(err, engine.ErrNotFound) {
		return []engine.Problem{{What: "container " + d.Name, Why: "it is here already", Remedy: "remove what is left of it on this node"}}, err
	}
	if _, err := e.ask(ctx, d.Name); !errors.Is(err, engine.ErrNotFound) {
		return []engine.Problem{{What: "name " + d.Name, Why: "a container of Docker on this node has it", Remedy: "remove or rename that container"}}, err
	}
	return nil, nil
}

// imageObstacles wants the image to be here: the same layers, whatever it is called.
func (e *Engine) imageObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem, error) {
	for _, ref := range []string{d.ImageID, d.Image} {
		image, err := e.api.ImageInspect(ctx, ref)
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
func (e *Engine) imageHere(ctx context.Context, d engine.Definition, x extra) string {
	image, err := e.api.ImageInspect(ctx, d.Image)
	if err == nil && slices.Equal(image.RootFS.Layers, x.Layers) {
		return d.Image // as it was started
	}
	return d.ImageID
}
