package podman

import (
	"context"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Reserve lists what stands against making this container here.
func (a *adapter) Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	x, err := decode(d)
	if err != nil {
		return nil, err
	}
	problems := obstacles(x.Config, x.Host, x.Mounts)
	problems = append(problems, a.runtimeObstacles(ctx)...)
	for _, look := range []func(context.Context, engine.Definition, extra) ([]engine.Problem, error){a.imageObstacles, a.volumeObstacles} {
		found, err := look(ctx, d, x)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// Readiness looks at the Podman of this node. Error: engine.ErrAway.
func Readiness(ctx context.Context) (engine.Readiness, error) {
	a := &adapter{root: DefaultRoot, hooks: hooksDir}
	if err := a.Away(); err != nil {
		return engine.Readiness{Title: a.Title()}, err
	}
	about, err := askInfo(ctx)
	return engine.Readiness{Title: a.Title(), Version: about.Version.Version, Problems: a.runtimeObstacles(ctx)}, err
}

// runtimeObstacles wants Podman to know godwit-runc, to keep files as this package expects it, and to obey guards.
func (a *adapter) runtimeObstacles(ctx context.Context) []engine.Problem {
	told, err := askInfo(ctx, "--runtime="+oci.Runtime)
	if err != nil {
		return []engine.Problem{{
			What: "runtime " + oci.Runtime + " of Podman", Why: "Podman does not know it: " + err.Error(), Remedy: "godwit engine setup podman",
		}}
	}
	p := problems{}
	p.add(told.Store.Driver != "overlay", "storage driver "+told.Store.Driver+" of Podman", "only overlay is supported", "use overlay")
	p.add(told.Store.GraphRoot != DefaultRoot, "storage of Podman in "+told.Store.GraphRoot, "it is looked for in "+DefaultRoot, "keep it there")
	return append(p, guardObstacles(ctx, a.hooks)...)
}

// imageObstacles wants the image to be here: the same layers, whatever it is called.
func (a *adapter) imageObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem, error) {
	for _, ref := range []string{d.ImageID, d.Image} {
		layers, err := layersOf(ctx, ref)
		if err == nil && slices.Equal(layers, x.Layers) {
			return nil, nil
		}
		if err != nil && !says(err, "no such", "not known", "not found") {
			return nil, fmt.Errorf("ask Podman about image %s: %w", ref, err)
		}
	}
	return []engine.Problem{{
		What: "image " + d.Image, Why: "Podman has none with these layers on this node", Remedy: "podman pull it here, or podman save and podman load it",
	}}, nil
}

// imageHere is the name of the image at which a container can be made here.
func (a *adapter) imageHere(ctx context.Context, d engine.Definition, x extra) string {
	layers, err := layersOf(ctx, d.Image)
	if err == nil && slices.Equal(layers, x.Layers) {
		return d.Image // as it was started
	}
	return d.ImageID
}
